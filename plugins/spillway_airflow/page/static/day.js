// One session as charts: its results by phase, and each slot's memory. Used by two views.

import { Chart, memoryOption, resultsOption } from "./charts.js";
import { h, put } from "./dom.js";
import { bytes, count, part, times } from "./words.js";

const MOST_SLOTS = 12;
/** More slots than so many do not fit beside the results. */
const BESIDE = 4;

const key = (kind, word) => h("li", {}, h("span", { class: `swatch ${kind}` }), word);

export class DayCharts {
  constructor() {
    this.says = h("p", { class: "muted" });
    this.canvas = h("div", { class: "chart tall", role: "img", "aria-label": "Results over time" });
    this.slots = h("div", { class: "slots" });
    this.more = h("div", { class: "every" });
    this.swept = key("clean", "cleanup");
    this.phases = h("ul", { class: "legend" }, key("run", "run time"), this.swept);
    this.marks = h(
      "ul",
      { class: "legend" },
      key("state", "state"),
      key("budget", "budget"),
      key("limit", "where it spills"),
      key("spill", "spilled"),
      key("flush", "flushed at the seal"),
      key("came", "groups came"),
      key("went", "groups went"),
    );
    this.figures = new Map();
    this.root = h(
      "div",
      { class: "charts" },
      h(
        "figure",
        { class: "wide", "data-chart": "results" },
        h("h2", {}, "Results over time"),
        this.says,
        this.phases,
        this.canvas,
      ),
      h(
        "figure",
        { class: "wide", "data-chart": "memory" },
        h("h2", {}, "Memory of the slots"),
        this.marks,
        this.slots,
        this.more,
      ),
    );
  }

  /** `day`: the session and its history; `live`: the slots as they are now, of the open session. */
  show(day, live) {
    const { session, history, threshold } = day;
    const byCleanup = session.results_cleanup;
    const begun = history.ended_ms.length > 0; // before that there is no span of time to draw
    this.canvas.hidden = this.phases.hidden = !begun;
    this.marks.hidden = history.slots.length === 0;
    this.swept.hidden = byCleanup === null;
    this.root.classList.toggle("stacked", history.slots.length > BESIDE || history.slots.length === 0);
    put(
      this.says,
      begun
        ? `${count(session.results_run_time)} at run time` +
            (byCleanup === null ? "" : `, ${count(byCleanup)} by cleanup`) +
            (session.results_corrections === null ? "" : `, ${count(session.results_corrections)} by corrections, which are not drawn`)
        : "No epoch of this session yet.",
    );
    this.canvas.setAttribute("aria-label", `Results over time: ${this.says.textContent}`);
    if (begun) {
      this.results ??= new Chart(this.canvas, resultsOption);
      this.results.show({ history, expected: session.verdict?.expected });
    }
    const memory = new Map(history.slots.map((slot) => [slot.slot, memoryOf(slot, live)]));
    const fullest = [...history.slots]
      .sort((a, b) => memory.get(b.slot).part - memory.get(a.slot).part)
      .slice(0, MOST_SLOTS)
      .sort((a, b) => a.slot - b.slot);
    const wanted = new Set(fullest.map((each) => each.slot));
    for (const [slot, figure] of this.figures) {
      if (!wanted.has(slot)) {
        figure.chart.end();
        figure.root.remove();
        this.figures.delete(slot);
      }
    }
    for (const slot of fullest) this.figure(slot.slot).show({ history, slot, threshold, live, memory: memory.get(slot.slot) });
    put(this.more, this.every(history.slots.length > fullest.length ? memory : new Map(), live, fullest.length));
  }

  /** Every slot as a bar, where not every one has a chart. */
  every(memory, live, drawn) {
    if (memory.size === 0) return drawn ? null : h("p", { class: "muted" }, "No epoch of this session has ended yet.");
    return [
      h("p", { class: "muted" }, `The ${count(drawn)} fullest of ${times(memory.size, "slot")} are drawn. Every slot, ${live ? "now" : "at most"}:`),
      h(
        "ul",
        { class: "bars" },
        [...memory].map(([slot, { held, budget, part: share }]) =>
          h(
            "li",
            { title: `slot ${slot}: ${bytes(held)} of ${bytes(budget)}`, "data-bar": slot },
            h("span", { class: "text" }, `slot ${slot}`),
            h("span", { class: "number" }, part(share)),
            h("span", { class: "bar state", style: { "--part": String(Math.min(1, share)) } }),
          ),
        ),
      ),
    ];
  }

  figure(slot) {
    if (!this.figures.has(slot)) {
      const figure = new SlotFigure(slot);
      const after = [...this.figures.values()].find((each) => each.slot > slot);
      this.slots.insertBefore(figure.root, after?.root ?? null);
      figure.begin();
      this.figures.set(slot, figure);
    }
    return this.figures.get(slot);
  }

  end() {
    this.results?.end();
    for (const figure of this.figures.values()) figure.chart.end();
  }
}

/** What a slot holds of its budget: now, or when most of it was in use. Budgets may change. */
function memoryOf(slot, live) {
  const now = live?.find((each) => each.slot === slot.slot);
  const of = (held, budget) => ({ held, budget, part: held / (budget || 1) });
  if (now) return of(now.state_bytes, now.budget_bytes);
  return slot.state_bytes
    .map((held, i) => of(held, slot.budget_bytes[i]))
    .reduce((most, each) => (each.part > most.part ? each : most));
}

class SlotFigure {
  constructor(slot) {
    this.slot = slot;
    this.title = h("h3", {}, `Slot ${slot}`);
    this.says = h("p", { class: "muted" });
    this.canvas = h("div", { class: "chart", role: "img" });
    this.root = h("div", { class: "slot", "data-slot": slot }, this.title, this.says, this.canvas);
  }

  begin() {
    this.chart = new Chart(this.canvas, memoryOption);
  }

  show({ history, slot, threshold, live, memory }) {
    const now = live?.find((each) => each.slot === this.slot);
    const spills = slot.spilled_bytes.filter((size, i) => size && !history.flush[i]).length;
    const came = slot.moved_in.reduce((a, b) => a + b, 0);
    const went = slot.moved_out.reduce((a, b) => a + b, 0);
    const parts = [`${now ? "" : "at most "}${bytes(memory.held)} of ${bytes(memory.budget)} (${part(memory.part)})`];
    parts.push(times(now?.spills ?? spills, "spill"));
    if (came || went) parts.push(`${count(came)} came, ${count(went)} went`);
    put(this.says, parts.join(" · "));
    this.canvas.setAttribute("aria-label", `Memory of slot ${this.slot}: ${parts.join(", ")}`);
    this.chart.show({ history, slot, threshold });
  }
}
