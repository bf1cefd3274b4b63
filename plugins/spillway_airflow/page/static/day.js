// One session as charts: its results by phase, and each slot's memory. Used by two views.

import { Chart, memoryOption, resultsOption } from "./charts.js";
import { h, put } from "./dom.js";
import { bytes, count, part, times } from "./words.js";

const MOST_SLOTS = 12;

const key = (kind, word) => h("li", {}, h("span", { class: `swatch ${kind}` }), word);

export class DayCharts {
  constructor() {
    this.says = h("p", { class: "muted" });
    this.canvas = h("div", { class: "chart tall", role: "img", "aria-label": "Results over time" });
    this.slots = h("div", { class: "slots" });
    this.more = h("p", { class: "muted" });
    this.figures = new Map();
    this.root = h(
      "div",
      { class: "charts" },
      h(
        "figure",
        { class: "wide", "data-chart": "results" },
        h("h2", {}, "Results over time"),
        this.says,
        h("ul", { class: "legend" }, key("run", "run time"), key("clean", "cleanup")),
        this.canvas,
      ),
      h(
        "figure",
        { class: "wide" },
        h("h2", {}, "Memory of the slots"),
        h(
          "ul",
          { class: "legend" },
          key("state", "state"),
          key("budget", "budget"),
          key("limit", "where it spills"),
          key("spill", "spilled"),
          key("flush", "flushed at the seal"),
          key("came", "groups came"),
          key("went", "groups went"),
        ),
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
    this.canvas.hidden = !begun;
    put(
      this.says,
      begun
        ? `${count(session.results_run_time)} at run time` +
            (byCleanup === null ? "" : `, ${count(byCleanup)} by cleanup`)
        : "No epoch of this session yet.",
    );
    this.canvas.setAttribute("aria-label", `Results over time: ${this.says.textContent}`);
    if (begun) {
      this.results ??= new Chart(this.canvas, resultsOption);
      this.results.show({ history, expected: session.verdict?.expected });
    }
    const fullest = [...history.slots]
      .sort((a, b) => Math.max(...b.state_bytes) - Math.max(...a.state_bytes))
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
    for (const slot of fullest) this.figure(slot.slot).show({ history, slot, threshold, live });
    const left = history.slots.length - fullest.length;
    put(this.more, left > 0 ? `${times(left, "more slot")} with less memory.` : "");
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

  show({ history, slot, threshold, live }) {
    const now = live?.find((each) => each.slot === this.slot);
    const budget = now?.budget_bytes || slot.budget_bytes.at(-1) || 1;
    const held = now?.state_bytes ?? Math.max(0, ...slot.state_bytes);
    const spills = slot.spilled_bytes.filter((size, i) => size && !history.flush[i]).length;
    const came = slot.moved_in.reduce((a, b) => a + b, 0);
    const went = slot.moved_out.reduce((a, b) => a + b, 0);
    const parts = [`${now ? "" : "at most "}${bytes(held)} of ${bytes(budget)} (${part(held / budget)})`];
    parts.push(times(now?.spills ?? spills, "spill"));
    if (came || went) parts.push(`${count(came)} came, ${count(went)} went`);
    put(this.says, parts.join(" · "));
    this.canvas.setAttribute("aria-label", `Memory of slot ${this.slot}: ${parts.join(", ")}`);
    this.chart.show({ history, slot, threshold });
  }
}
