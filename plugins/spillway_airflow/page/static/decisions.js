// What was asked for, by whom and why; whether the stream obeyed; what it did.

import { sealNote } from "./actions.js";
import { chip, h, put, s, scroller } from "./dom.js";
import { age, bytes, count, date, moment, times, utc, visible } from "./words.js";
import { nowMs } from "./server.js";

const MOST_BARS = 12;
const SHOWN = 100;
const ALL = 400;

const WORDS = { withdraw: "withdrawal of a seal", "accept-loss": "acceptance of a loss" };

const kinds = (counts) =>
  Object.entries(counts).map(([kind, n]) =>
    kind === "slots" ? `${count(n)} slots` : times(n, WORDS[kind] ?? kind),
  );

/** What was asked about a session: the words, and what became of it. */
const SEALS = {
  sealed: ["seal", ["good", "lock", "obeyed"]],
  withdrawn: ["withdrawal of a seal", ["good", "check", "obeyed"]],
  "not withdrawn": ["withdrawal of a seal", ["bad", "cross", "refused"]],
  refused: ["seal", ["bad", "cross", "refused"]],
  "loss accepted": ["acceptance of a loss", ["good", "check", "obeyed"]],
  "loss refused": ["acceptance of a loss", ["bad", "cross", "refused"]],
};

const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

/** Each slot's memory before and after, side by side; the scale is that of the fullest slot shown.
 *  Of many slots: those whose memory has changed most. */
function effect(before, after) {
  const slots = Object.keys({ ...before, ...after }).map(Number).sort((a, b) => a - b);
  const change = (slot) => Math.abs((after[slot] ?? 0) - (before[slot] ?? 0));
  const few = [...slots].sort((a, b) => change(b) - change(a)).slice(0, MOST_BARS).sort((a, b) => a - b);
  const most = Math.max(...few.flatMap((slot) => [before[slot] ?? 0, after[slot] ?? 0]), 1);
  const [width, height] = [few.length * 18, 34];
  const bar = (x, size, kind) =>
    s("rect", { x, y: height - (size / most) * height, width: 6, height: Math.max(1, (size / most) * height), class: kind });
  const text = few
    .map((slot) => `slot ${slot}: ${bytes(before[slot] ?? 0)} before, ${bytes(after[slot] ?? 0)} after`)
    .join("\n");
  return h(
    "div",
    { class: "effect", title: text },
    s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text },
      few.map((slot, i) => [bar(i * 18, before[slot] ?? 0, "before"), bar(i * 18 + 8, after[slot] ?? 0, "after")]),
    ),
    h("span", { class: "muted" }, `0 to ${bytes(most)}${few.length < slots.length ? `; ${few.length} of ${slots.length} slots` : ""}`),
  );
}

function verdict(each) {
  const refused = sum(each.refused);
  const obeyed = sum(each.obeyed);
  if (obeyed && each.waiting) return chip("wait", "wait", `${count(each.waiting)} under way`);
  if (obeyed && refused) return chip("wait", "warn", `obeyed, ${count(refused)} refused`);
  if (obeyed) return chip("good", "check", "obeyed");
  return chip("bad", "cross", "refused");
}

export class Decisions {
  path = () => `decisions?most=${this.most}`;
  most = SHOWN;

  constructor(page) {
    this.page = page;
    this.waiting = h("section", { class: "waiting" });
    this.body = h("tbody", {});
    this.none = h("p", { class: "empty" });
    this.more = h("p", { class: "more" });
    const memory = ["memory ", h("span", { class: "swatch before" }), "before and ", h("span", { class: "swatch after" }), "after"];
    const heads = ["when", "by", "what", "outcome", memory, "results since", "why"];
    this.table = h(
      "table",
      { class: "list" },
      h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col", class: t === "results since" && "number" }, t)))),
      this.body,
    );
    this.root = h(
      "div",
      { class: "view" },
      this.waiting,
      h("section", { class: "card" }, h("h2", {}, "Decisions"), this.none, scroller("Decisions", this.table), this.more),
    );
  }

  show(data) {
    this.data = data;
    this.tick();
    const rows = [
      ...data.decisions.map((each) => [new Date(each.at), () => this.row(each)]),
      ...data.seals.map((each) => [new Date(each.at), () => this.seal(each)]),
    ].sort((a, b) => b[0] - a[0]);
    this.table.hidden = rows.length === 0;
    this.none.hidden = rows.length > 0;
    put(this.none, `Nothing was asked for yet. The DAG ${this.page.me.dags.rebalance} runs the controller while the market is open; Actions runs it now.`);
    put(this.body, rows.map(([, made]) => made()));
    put(
      this.more,
      data.total > data.decisions.length &&
        h("button", { type: "button", "data-key": "more", onclick: () => this.all() }, `Show all ${count(data.total)}`),
    );
  }

  all() {
    this.most = ALL;
    this.page.look();
  }

  /** What waits, and for how long. */
  tick() {
    put(
      this.waiting,
      sealNote(this.page, this.page.pending),
      this.data.waiting.map((each) =>
        h(
          "p",
          { class: "note" },
          chip("wait", "wait", "not answered yet"),
          h(
            "span",
            {},
            `${kinds(each.kinds).join(", ")}${each.session ? ` of ${each.session}` : ""}, asked for${each.by ? ` by ${visible(each.by)}` : ""}` +
              `${each.issued_at ? ` ${age((nowMs() - new Date(each.issued_at)) / 1000)} ago` : ""}${each.reason ? `: ${visible(each.reason)}` : ""}`,
          ),
        ),
      ),
    );
  }

  seal(each) {
    const at = new Date(each.at).getTime();
    return h(
      "tr",
      {},
      h("td", { class: "nowrap" }, h("time", { title: utc(at), datetime: each.at }, moment(at))),
      h("td", {}, h("span", { class: "tag person" }, visible(each.by || "–"))),
      h("td", {}, SEALS[each.what][0], h("div", {}, h("a", { href: `#sessions/${each.session}` }, date(each.session)))),
      h("td", {}, chip(...SEALS[each.what][1])),
      h("td", {}, h("span", { class: "muted" }, "–")),
      h("td", { class: "number" }, "–"),
      h("td", { class: "why" }, visible(each.reason)),
    );
  }

  row(each) {
    const at = new Date(each.at).getTime();
    const done = each.done_epoch !== null;
    const refusals = Object.entries(each.refused);
    return h(
      "tr",
      {},
      h("td", { class: "nowrap" }, h("time", { title: utc(at), datetime: each.at }, moment(at)), h("div", { class: "muted" }, `epoch ${count(each.epoch)}`)),
      h("td", {}, each.policy ? h("span", { class: "tag" }, visible(each.policy)) : h("span", { class: "tag person" }, "a person"), each.by && h("div", { class: "muted" }, visible(each.by))),
      h("td", { class: "nowrap" }, kinds(each.obeyed).join(", ") || times(sum(each.refused), "command"), each.bytes > 0 && h("div", { class: "muted" }, bytes(each.bytes))),
      h("td", {}, verdict(each)),
      h("td", {}, done && sum(each.obeyed) > 0 && sum(each.after) > 0 ? effect(each.before, each.after) : h("span", { class: "muted" }, done ? "–" : "under way")),
      h("td", { class: "number" }, count(each.results_since)),
      h(
        "td",
        { class: "why" },
        each.reason && h("div", {}, visible(each.reason)),
        refusals.map(([reason, n]) => h("div", { class: "refusal" }, `refused: ${visible(reason)}${n > 1 ? ` (${count(n)}x)` : ""}`)),
      ),
    );
  }

  end() {}
}
