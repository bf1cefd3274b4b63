// All partition groups: the map, and a table to sort and search (the server sorts and searches, for
// there may be 32,768 of them).

import { chip, h, put, scroller } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { bytes, count, number, part, visible } from "./words.js";

const COLUMNS = [
  ["group", "group", false],
  ["slot", "slot", true],
  [null, "state", false],
  ["bytes", "memory", true],
  ["rows", "rows", true],
  ["results", "results", true],
  ["rate", "results/s", true],
  ["loss_per_kib", "loss/KiB", true],
  ["generations", "generations", true],
  ["spilled_bytes", "spilled", true],
  ["hot_share", "hottest key", false],
];

const CHIPS = {
  empty: ["quiet", "quiet", "empty"],
  resident: ["good", "open", "resident"],
  partly: ["clean", "sweep", "partly spilled"],
  spilled: ["bad", "sweep", "spilled"],
  moving: ["wait", "move", "moving"],
};
const STEP = 50;

export class Groups {
  /** `join`: the one whose groups are looked at; none: all of them. */
  constructor(page, join) {
    this.page = page;
    this.join = join ?? "";
    this.select = h("select", { id: "join", name: "join", onchange: () => (location.hash = this.select.value ? `groups/${this.select.value}` : "groups") });
    this.chooser = h("label", { class: "chooser", for: "join", hidden: true }, h("span", {}, "Join"), this.select);
    this.order = "bytes";
    this.descending = true;
    this.search = "";
    this.most = STEP;
    this.heat = new HeatMap({ picked: (first, groups) => groups === 1 && this.find(first) });
    this.input = h("input", {
      type: "search",
      placeholder: "group, slot:1, spilled, a key",
      "aria-label": "Search the groups",
      maxlength: 100,
      oninput: () => this.typed(),
    });
    this.says = h("p", { class: "muted", role: "status" });
    this.heads = h("tr", {});
    this.body = h("tbody", {});
    this.more = h("p", { class: "more" });
    this.root = h(
      "div",
      { class: "view" },
      this.chooser,
      this.heat.root,
      h(
        "section",
        { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Table"), this.input, this.says),
        scroller("Groups", h("table", { class: "list" }, h("thead", {}, this.heads), this.body)),
        this.more,
      ),
    );
    this.drawHeads();
  }

  path() {
    const asked = { order: this.order, descending: this.descending, search: this.search, most: this.most };
    if (this.join) asked.join = this.join;
    return `groups?${new URLSearchParams(asked)}`;
  }

  /** The address names another join. */
  choose(join) {
    if ((join ?? "") === this.join) return;
    this.join = join ?? "";
    this.most = STEP;
  }

  /** Joins to choose from, where there are several. */
  showJoins({ joins, join }) {
    this.chooser.hidden = joins.length === 0;
    if (this.select.options.length !== joins.length + 1) {
      put(this.select, h("option", { value: "" }, "all joins"), joins.map((name) => h("option", { value: name }, visible(name))));
    }
    this.select.value = join;
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.find(this.input.value), 200);
  }

  find(text) {
    if (this.input.value !== text) this.input.value = text;
    this.search = text.trim();
    this.most = STEP;
    this.page.look();
  }

  sort(order) {
    this.descending = this.order === order ? !this.descending : order !== "group" && order !== "slot";
    this.order = order;
    this.drawHeads();
    this.page.look();
  }

  drawHeads() {
    put(
      this.heads,
      COLUMNS.map(([order, word, isNumber]) => {
        const mine = order === this.order;
        return h(
          "th",
          { scope: "col", class: isNumber && "number", "aria-sort": mine ? (this.descending ? "descending" : "ascending") : null },
          order === null
            ? word
            : h("button", { type: "button", class: "sort", "data-key": order, onclick: () => this.sort(order) }, word, h("span", { "aria-hidden": "true" }, mine ? (this.descending ? " ↓" : " ↑") : "")),
        );
      }),
    );
  }

  show(data) {
    this.showJoins(data);
    this.heat.show(data);
    const { rows, found, total } = data;
    put(this.says, found === total ? `${count(rows.length)} of ${count(total)} groups` : `${count(rows.length)} of ${count(found)} found, among ${count(total)}`);
    put(this.body, rows.map((each) => this.row(each)));
    if (rows.length === 0) put(this.body, h("tr", {}, h("td", { colspan: COLUMNS.length, class: "muted" }, total ? "No group is like that." : "There are no groups yet.")));
    const left = Math.min(found, 500) - rows.length;
    put(
      this.more,
      left > 0 && h("button", { type: "button", "data-key": "more", onclick: () => this.longer() }, `Show ${count(Math.min(left, 150))} more`),
    );
  }

  longer() {
    this.most = Math.min(500, this.most + 150);
    this.page.look();
  }

  row(each) {
    const [kind, shape, word] = CHIPS[each.state];
    const cells = [
      String(each.slot),
      null,
      bytes(each.bytes),
      count(each.rows),
      count(each.results),
      number(each.rate),
      number(each.loss_per_kib),
      count(each.generations),
      bytes(each.spilled_bytes),
    ];
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, each.group),
      cells.map((text) =>
        text === null
          ? h("td", {}, chip(kind, shape, each.target === null ? word : `to slot ${each.target}`))
          : h("td", { class: "number" }, text),
      ),
      h("td", { class: "key" }, each.hot_key === null ? h("span", { class: "muted", title: "Keys are counted in the largest groups only." }, "–") : [h("bdi", {}, visible(each.hot_key)), h("span", { class: "muted" }, ` ${part(each.hot_share)}`)]),
    );
  }

  end() {
    clearTimeout(this.typing);
    this.heat.end();
  }
}
