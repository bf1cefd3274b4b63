// The map of all groups: a block of cells for each slot, cells in the order of their hashes.
// Figures of a cell are shown on hover, and with the arrow keys.

import { h, put, s } from "./dom.js";
import { scaleOf, viridis } from "./scale.js";
import { bytes, count, number, rate, times } from "./words.js";

const [LEAST, MOST] = [13, 24];
/** Height that the map may take, about. */
const HEIGHT = 300;
const GAP = 2;
/** Slots up to so many have a row of the page each. */
const FEW = 4;
/** Width that a slot's title needs, on two lines. */
const TITLE = 140;
const STEPS = 24;
const SAMPLE = 17;

export const METRICS = {
  loss_per_kib: { word: "expected loss", says: "results that a spill now would give up, for each KiB", text: (v) => `${number(v)} a KiB` },
  bytes: { word: "bytes", says: "state in memory", text: (v) => bytes(v) },
  rate: { word: "rate", says: "results a second, lately", text: (v) => rate(v, "results") },
};

const WORDS = {
  empty: "holds nothing",
  resident: "in memory",
  partly: "spilled before, newer rows in memory",
  spilled: "spilled, nothing in memory",
  moving: "about to move",
};

/** The lowest and the highest eviction line of the slots. */
function lines([low, high]) {
  const { text } = METRICS.loss_per_kib;
  return low === high ? text(low) : `${number(low)} to ${text(high)}, by slot`;
}

/** A cell: its colour says how much, its marks say in which state it is. */
function cell(x, y, side, state, t) {
  const size = side - GAP;
  const marks = [];
  if (state === "spilled") marks.push(s("path", { class: "cut", d: `M${x + 3} ${y + size - 3}L${x + size - 3} ${y + 3}` }));
  if (state === "partly") marks.push(s("path", { class: "corner", d: `M${x + size} ${y + size * 0.5}V${y + size}H${x + size * 0.5}z` }));
  if (state === "moving") marks.push(s("rect", { class: "ring", x: x + 1.5, y: y + 1.5, width: size - 3, height: size - 3, rx: 2 }));
  const none = t === null || state === "empty" || state === "spilled";
  return s(
    "g",
    { class: `cell ${state}` },
    s("rect", { x, y, width: size, height: size, rx: 2.5, class: none ? "none" : "some", fill: none ? null : viridis(t) }),
    marks,
  );
}

export class HeatMap {
  constructor({ picked }) {
    this.picked = picked;
    this.metric = "loss_per_kib";
    this.cells = [];
    this.at = -1;
    this.choice = h(
      "div",
      { class: "segments", role: "radiogroup", "aria-label": "Colour by" },
      Object.entries(METRICS).map(([name, { word, says }]) =>
        h(
          "label",
          { title: says },
          h("input", { type: "radio", name: "metric", value: name, checked: name === this.metric, onchange: () => this.choose(name) }),
          h("span", {}, word),
        ),
      ),
    );
    this.legend = h("div", { class: "scale" });
    this.note = h("span", { class: "muted" });
    this.map = h("div", {
      class: "map",
      tabindex: "0",
      role: "application",
      "aria-label": "Map of all groups by slot; arrow keys go from group to group",
      onkeydown: (event) => this.key(event),
      onmousemove: (event) => this.hover(event),
      onmouseleave: () => this.leave(),
      onblur: () => this.leave(),
      onclick: () => this.at >= 0 && this.picked(this.data.cells.first[this.at], this.data.cells.groups[this.at]),
    });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.root = h(
      "section",
      { class: "card" },
      h("div", { class: "head" }, h("h2", {}, "Groups"), this.choice, this.note, this.legend),
      this.map,
      this.states(),
      this.tip,
    );
    this.resized = new ResizeObserver(() => this.data && this.map.clientWidth !== this.width && this.draw());
    this.resized.observe(this.map);
  }

  states() {
    const sample = (state) =>
      s("svg", { viewBox: `0 0 ${SAMPLE} ${SAMPLE}`, width: 15, height: 15, "aria-hidden": "true" }, cell(1, 1, SAMPLE, state, 0.6));
    return h(
      "ul",
      { class: "legend" },
      Object.entries(WORDS).map(([state, word]) => h("li", {}, sample(state), " ", word)),
    );
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  choose(name) {
    this.metric = name;
    if (this.data) this.draw();
  }

  draw() {
    const { cells, states } = this.data;
    const values = cells[this.metric];
    const scale = scaleOf(values);
    this.width = this.map.clientWidth;
    const fits = Math.sqrt((this.width * HEIGHT) / Math.max(1, cells.slot.length));
    const side = Math.floor(Math.min(MOST, Math.max(LEAST, fits)));
    this.cells = [];
    const blocks = [];
    const slots = new Map();
    cells.slot.forEach((slot, i) => slots.set(slot, [...(slots.get(slot) ?? []), i]));
    // A few slots have a row of the page each; many lie side by side, as wide as their titles.
    const most = Math.max(...[...slots.values()].map((own) => own.length));
    const wide = slots.size > FEW ? Math.max(Math.ceil(TITLE / side), Math.ceil(Math.sqrt(4 * most))) : Infinity;
    this.columns = Math.max(8, Math.min(wide, Math.floor(this.width / side)));
    for (const [slot, own] of [...slots].sort((a, b) => a[0] - b[0])) {
      const drawn = own.map((i, place) => {
        const x = (place % this.columns) * side;
        const y = Math.floor(place / this.columns) * side;
        const made = cell(x, y, side, states[cells.state[i]], scale.at(values[i]));
        made.dataset.cell = i;
        this.cells[i] = made;
        return made;
      });
      const rows = Math.ceil(own.length / this.columns);
      const size = own.reduce((total, i) => total + cells.bytes[i], 0);
      const groups = own.reduce((total, i) => total + cells.groups[i], 0);
      const moving = own.reduce((total, i) => total + cells.moving[i], 0);
      const says = [times(groups, "group"), bytes(size)];
      if (moving) says.push(`${count(moving)} about to move`);
      blocks.push(
        h(
          "div",
          { class: "block", style: { width: `${this.columns * side}px` } },
          h("h3", {}, `Slot ${slot}`, h("span", { class: "muted" }, ` ${says.join(" · ")}`)),
          s("svg", { width: this.columns * side, height: rows * side, "aria-hidden": "true" }, drawn),
        ),
      );
    }
    put(this.map, blocks);
    const each = Math.max(0, ...cells.groups);
    put(this.note, each > 1 ? `a cell is ${count(each)} neighbouring groups of a slot` : "");
    this.scale(scale);
    if (this.at >= 0) this.mark(this.at < this.cells.length ? this.at : -1);
  }

  scale({ low, high, of }) {
    const { says, text } = METRICS[this.metric];
    const width = 140;
    put(
      this.legend,
      h("span", { class: "muted" }, says),
      high > 0 && h("span", { class: "number" }, text(low)),
      high > 0 &&
        s(
          "svg",
          { width, height: 10, "aria-hidden": "true" },
          Array.from({ length: STEPS }, (_, i) =>
            s("rect", { x: (i * width) / STEPS, y: 0, width: width / STEPS + 0.5, height: 10, fill: viridis(i / (STEPS - 1)) }),
          ),
        ),
      high > 0 && h("span", { class: "number", title: `in the middle: ${text(of(0.5))}` }, text(high)),
      this.metric === "loss_per_kib" && this.data.line !== null &&
        h("span", { class: "muted" }, `eviction line: a spill now takes groups up to ${lines(this.data.line)}`),
    );
  }

  hover(event) {
    const cell = event.target.closest?.(".cell");
    if (cell?.dataset.cell === undefined) this.leave();
    else this.mark(Number(cell.dataset.cell));
  }

  leave() {
    this.mark(-1);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
    if (event.key === "Escape") this.leave();
    else if (event.key === "Enter" && this.at >= 0) this.map.click();
    else if (step && this.cells.length) {
      event.preventDefault();
      this.mark(this.at < 0 ? 0 : Math.min(this.cells.length - 1, Math.max(0, this.at + step)));
    }
  }

  mark(i) {
    for (const cell of this.map.querySelectorAll(".cell.at")) cell.classList.remove("at");
    this.at = i;
    this.tip.hidden = i < 0;
    if (i < 0) return;
    this.cells[i].classList.add("at");
    put(this.tip, this.figures(i));
    const box = this.cells[i].getBoundingClientRect();
    const own = this.tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const above = box.top - own.height - 8;
    this.tip.style.setProperty("left", `${left}px`);
    this.tip.style.setProperty("top", `${above > 8 ? above : box.bottom + 8}px`);
  }

  figures(i) {
    const { cells, states } = this.data;
    const many = cells.groups[i] > 1;
    const next = cells.spills_next[i];
    const state = states[cells.state[i]];
    const pairs = [
      ["state", bytes(cells.bytes[i])],
      ["results", count(cells.results[i])],
      ["expected loss", `${number(cells.loss_per_kib[i])} a KiB`],
      ["rate", rate(cells.rate[i], "results")],
      ["spilled", bytes(cells.spilled_bytes[i])],
    ];
    const what = many
      ? [cells.moving[i] && `${count(cells.moving[i])} about to move`, cells.spilled[i] && `${count(cells.spilled[i])} with spilled rows`, next && `${count(next)} next to be spilled`].filter(Boolean).join(", ") || WORDS[state]
      : [WORDS[state], next && "next to be spilled"].filter(Boolean).join(", ");
    return [
      h("b", {}, many ? `${count(cells.groups[i])} groups, ${cells.first[i]} to ${cells.last[i]}` : `group ${cells.first[i]}`),
      h("p", {}, `slot ${cells.slot[i]} · ${what}`),
      h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ];
  }

  end() {
    this.resized.disconnect();
  }
}
