// Every day with its counts, verdict, durations and its run; one day in full.

import { DayCharts } from "./day.js";
import { chip, h, put, scroller } from "./dom.js";
import { closings, leave, runPath, view } from "./server.js";
import { lacks, resultParts, stageChip, stageWords, whyLost } from "./stages.js";
import { bytes, count, date, moment, ms, span, times, utc, visible } from "./words.js";

const RUNS_EVERY_MS = 5000;
const SHOWN = 60;

const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);
// Each column's name, and whether it has numbers. "by corrections" is shown where a day has some.
const HEADS = [
  ["session", false],
  ["state", false],
  ["rows in", true],
  ["at run time", true],
  ["by cleanup", true],
  ["by corrections", true],
  ["verdict", false],
  ["quarantined", true],
  ["spills", true],
  ["was open", true],
  ["cleanup took", true],
  ["verify took", true],
  ["run", false],
  ["", false],
];

const seconds = (from, to) => (from && to ? (new Date(to) - new Date(from)) / 1000 : null);

const RUNS = {
  success: ["good", "check"],
  failed: ["bad", "cross"],
  running: ["run", "open"],
  queued: ["wait", "wait"],
};

export class Sessions {
  most = SHOWN;

  constructor(page, chosen) {
    this.page = page;
    this.chosen = chosen;
    this.runs = new Map();
    this.paused = false;
    this.asked = 0;
    this.detail = h("section", { class: "detail", "aria-label": "One session" });
    this.body = h("tbody", {});
    this.more = h("p", { class: "more" });
    this.heads = h("tr", {});
    this.root = h(
      "div",
      { class: "view" },
      this.detail,
      h(
        "section",
        { class: "card" },
        h("h2", {}, "Sessions"),
        scroller(
          "Sessions",
          h("table", { class: "list" }, h("thead", {}, this.heads), this.body),
        ),
        this.more,
      ),
    );
  }

  path = () => `sessions?most=${this.most}`;

  /** After the list: its runs, and the day that was chosen. */
  async also(signal) {
    if (Date.now() - this.asked > RUNS_EVERY_MS) {
      this.asked = Date.now();
      try {
        const { runs, paused } = await closings(this.page.me.dags.market_close);
        this.runs = runs;
        this.paused = paused;
      } catch {
        this.runs = new Map(); // without Airflow's API the days are shown without their runs
      }
      if (this.data) this.rows();
    }
    if (this.chosen) {
      const { data, changed } = await view(`sessions/${encodeURIComponent(this.chosen)}`, signal);
      if (data.session && (changed || !this.charts)) this.day(data);
    }
  }

  show(data) {
    this.data = data;
    this.rows();
    put(
      this.more,
      data.total > data.sessions.length &&
        h("button", { type: "button", "data-key": "more", onclick: () => this.all() }, `Show all ${count(data.total)}`),
    );
  }

  all() {
    this.most = 1000;
    this.page.look();
  }

  rows() {
    this.corrected = this.data.sessions.some(({ session }) => session.results_corrections !== null);
    const heads = HEADS.filter(([t]) => t !== "by corrections" || this.corrected);
    put(this.heads, heads.map(([t, number]) => h("th", { scope: "col", class: number && "number" }, t || h("span", { class: "visually-hidden" }, "what can be done"))));
    put(this.body, this.data.sessions.map((each) => this.row(each)));
  }

  row({ session, stage }) {
    const verdict = session.verdict;
    const day = session.session;
    return h(
      "tr",
      { class: day === this.chosen && "chosen", "data-session": day },
      h("th", { scope: "row", class: "nowrap" }, h("a", { href: `#sessions/${day}`, "data-key": day }, date(day))),
      h("td", {}, stageChip(stage)),
      h("td", { class: "number" }, count(sum(session.rows_in))),
      h("td", { class: "number" }, count(session.results_run_time)),
      h("td", { class: "number" }, count(session.results_cleanup)),
      this.corrected && h("td", { class: "number" }, count(session.results_corrections)),
      h("td", { class: "nowrap" }, this.verdict(session)),
      h("td", { class: "number" }, count(session.rejected)),
      h("td", { class: "number" }, count(session.spills)),
      h("td", { class: "number nowrap" }, span(seconds(session.began_at, session.ended_at))),
      h("td", { class: "number nowrap" }, span(session.cleanup_s)),
      h("td", { class: "number nowrap" }, span(verdict?.seconds)),
      h("td", { class: "nowrap" }, this.run(day)),
      h("td", {}, this.again(session, stage)),
    );
  }

  verdict({ verdict, unproved, accepted_losses: losses }) {
    if (!verdict) return h("span", { class: "muted" }, unproved || "–");
    return verdict.complete ? `all ${count(verdict.expected)}` : h("span", { class: "refusal", title: whyLost(losses) || null }, lacks(verdict));
  }

  run(day) {
    const found = this.runs.get(day);
    if (!found) return h("span", { class: "muted" }, "–");
    const [kind, shape] = RUNS[found.state] ?? ["wait", "wait"];
    const path = runPath(this.page.me.dags.market_close, found.id);
    const state = found.state === "queued" && this.paused ? "queued: DAG is paused" : found.state;
    return h(
      "a",
      {
        href: `../${path}`,
        "data-key": `run-${day}`,
        onclick: (event) => {
          event.preventDefault();
          leave(path);
        },
      },
      chip(kind, shape, state, `${found.id} of ${this.page.me.dags.market_close}`),
    );
  }

  again(session, stage) {
    if (!this.page.me?.may.market_close || stage === "open" || stage === "next") return null;
    return h(
      "button",
      { type: "button", class: "small", "data-key": `again-${session.session}`, onclick: () => this.page.actions.open("cleanup", { session: session.session }) },
      "Backfill",
    );
  }

  day(data) {
    if (!this.charts) {
      this.charts = new DayCharts();
      this.facts = h("div", {});
      put(this.detail, this.facts, this.charts.root);
    }
    const { session, stage } = data;
    const words = stageWords(stage);
    const verdict = session.verdict;
    const time = (text) => text && h("time", { title: utc(new Date(text)) }, moment(new Date(text)));
    const facts = [
      ["began", time(session.began_at)],
      ["sealed", session.ended_at && [time(session.ended_at), session.seal_by && ` by ${visible(session.seal_by)}`]],
      ["why", session.seal_reason && visible(session.seal_reason)],
      ["results", resultParts(session).join(", ")],
      ["proved", verdict && [time(verdict.verified_at), `, took ${span(verdict.seconds)}`]],
      ["loss accepted", whyLost(session.accepted_losses)],
      ["rows in", Object.entries(session.rows_in).map(([t, n]) => `${visible(t)} ${count(n)}`).join(", ")],
      ["rejected, filtered", `${count(session.rejected)}, ${count(session.filtered)}`],
      ["outside the day", Object.entries(session.outside).map(([t, n]) => `${visible(t)} ${count(n)}`).join(", ")],
      ["spilled", `${bytes(session.spilled_bytes)} in ${times(session.spills, "spill")}, ${bytes(session.flushed_bytes)} at the seal`],
      ["came back to memory", session.returned_bytes ? bytes(session.returned_bytes) : null],
      ["spills for want of room", session.overflows ? `${count(session.overflows)} came before the threshold: raise state.budget_bytes or lower spill.threshold` : null],
      ["generations", `${count(session.generations)} (at most ${count(session.most_generations)} of one group)`],
      ["groups moved", count(session.moved)],
      ["peak state of a slot", `${bytes(session.peak_state_bytes)} of ${bytes(session.budget_bytes)}`],
      ["lost slots left to cleanup", session.deferred_slots ? count(session.deferred_slots) : null],
      ["lost slots restored", session.restored_slots ? count(session.restored_slots) : null],
      ["production delay", `p50 ${ms(session.delay_p50_ms)}, p99 ${ms(session.delay_p99_ms)}`],
      ["report", h("a", { href: `report/${encodeURIComponent(session.session)}` }, "figures and charts")],
    ].filter(([, value]) => value);
    put(
      this.facts,
      h(
        "div",
        { class: "head" },
        h("h1", {}, h("strong", {}, date(session.session)), " ", stageChip(stage)),
        h("p", { class: "muted" }, session.unproved || words.says),
        h("a", { href: "#sessions", class: "button small", "data-key": "close" }, "Close"),
      ),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    );
    this.charts.show(data, null);
  }

  choose(day) {
    this.chosen = day;
    if (!day && this.charts) {
      this.charts.end();
      this.charts = null;
      put(this.detail);
    }
    if (this.data) this.rows();
  }

  end() {
    this.charts?.end();
  }
}
