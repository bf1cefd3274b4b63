// The one way to make elements. Text is always text: nothing here, and nothing elsewhere in the
// page, turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** An HTML element; children are elements or text. */
export const h = (tag, attributes, ...children) =>
  filled(document.createElement(tag), attributes, children);

/** The same in SVG. */
export const s = (tag, attributes, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

/** Put new children in place of the old ones; the element that had the focus has it afterwards. */
export function put(parent, ...children) {
  const active = document.activeElement;
  const key = active && parent.contains(active) ? active.dataset.key : undefined;
  parent.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  return parent;
}

/** What may be wider than the window: it scrolls, and shows on which sides there is more. */
export function scroller(label, content) {
  const inner = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);
  const outer = h("div", { class: "scroller" }, inner);
  const look = () => {
    const left = inner.scrollWidth - inner.clientWidth - inner.scrollLeft;
    outer.classList.toggle("more-left", inner.scrollLeft > 1);
    outer.classList.toggle("more-right", left > 1);
  };
  inner.addEventListener("scroll", look, { passive: true });
  const resized = new ResizeObserver(look);
  resized.observe(inner);
  resized.observe(content);
  return outer;
}

const SHAPES = {
  open: ["M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z"],
  quiet: ["M5.5 3.5v9M10.5 3.5v9"],
  check: ["M3 8.5l3.2 3.2L13 5"],
  cross: ["M4 4l8 8M12 4l-8 8"],
  lock: ["M4.5 7.5h7v6h-7z", "M6 7.5V5.3a2 2 0 0 1 4 0v2.2"],
  wait: ["M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11z", "M8 5v3.2l2.2 1.4"],
  sweep: ["M9.8 2.5L7 8.2", "M4.2 8l6 2.8-1.4 3H3.2c1.4-1.4 1-3.6 1-5.8z"],
  warn: ["M8 2.5l6 10.8H2z", "M8 6.6v3.2M8 11.4v.4"],
  next: ["M4 3.5l5 4.5-5 4.5M11.5 3.5v9"],
  move: ["M2.5 8h10M9 4.5L12.5 8 9 11.5"],
};

/** A small drawing that goes with a word; it says nothing by itself. */
export const icon = (name) =>
  s(
    "svg",
    { viewBox: "0 0 16 16", class: `icon icon-${name}`, "aria-hidden": "true" },
    ...SHAPES[name].map((d) => s("path", { d })),
  );

/** A word with its drawing in a colour of its own: told apart without the colour, too. */
export const chip = (kind, shape, word, title) =>
  h("span", { class: `chip ${kind}`, title }, icon(shape), h("span", {}, word));
