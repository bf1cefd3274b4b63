// The joins of a tree: what each holds and has given, as a picture, and which join runs where.

import { h, put, scroller } from "./dom.js";
import { bytes, count, number, times, visible } from "./words.js";

const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

export class Joins {
  constructor() {
    this.tree = h("ul", { class: "tree" });
    this.heads = h("tr", {});
    this.body = h("tbody", {});
    const table = h("table", { class: "list" }, h("thead", {}, this.heads), this.body);
    this.root = h(
      "section",
      { class: "columns", "data-panel": "joins", hidden: true },
      h("article", {}, h("h2", {}, "Joins ", h("small", {}, "the root first")), this.tree),
      h("article", {}, h("h2", {}, "Which join runs where ", h("small", {}, "state and groups by slot")), scroller("Joins by slot", table)),
    );
  }

  /** `joins`: children first; none of a query of one join. */
  show(joins) {
    this.root.hidden = joins.length === 0;
    if (joins.length === 0) return;
    const named = new Map(joins.map((each) => [each.join, each]));
    const order = [];
    put(this.tree, this.node(joins.at(-1).join, named, order));
    const slots = [...new Set(joins.flatMap((each) => Object.keys(each.groups).map(Number)))].sort((a, b) => a - b);
    put(this.heads, h("th", { scope: "col" }, "join"), slots.map((slot) => h("th", { scope: "col", class: "number" }, `slot ${slot}`)));
    put(this.body, order.map((each) => this.row(each, slots)));
  }

  /** A join with what it reads below it, or a stream. */
  node(name, named, order) {
    const each = named.get(name);
    if (!each) return h("li", {}, h("div", { class: "node stream" }, visible(name)));
    order.push(each);
    return h(
      "li",
      {},
      h(
        "div",
        { class: "node", "data-join": each.join },
        h("a", { href: `#groups/${each.join}`, "data-key": each.join, title: "Look at its groups" }, visible(each.join)),
        h(
          "dl",
          {},
          figure("rows", count(each.rows)),
          figure("state", bytes(each.bytes)),
          figure("results", count(each.results)),
          figure("per KiB", number(each.productivity)),
          figure(each.cuts === 1 ? "generation" : "generations", count(each.cuts)),
          figure("spilled", bytes(each.spilled_bytes)),
        ),
      ),
      each.inputs.length > 0 && h("ul", {}, each.inputs.map((input) => this.node(input, named, order))),
    );
  }

  row(each, slots) {
    const cell = (slot) =>
      each.groups[slot] === undefined
        ? h("td", { class: "number muted" }, "–")
        : h("td", { class: "number" }, bytes(each.slot_bytes[slot]), h("div", { class: "muted" }, times(each.groups[slot], "group")));
    return h("tr", { "data-join": each.join }, h("th", { scope: "row" }, visible(each.join)), slots.map(cell));
  }
}
