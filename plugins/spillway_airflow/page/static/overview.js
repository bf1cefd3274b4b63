// Today: where the session stands, the figures that matter, results and memory over time.

import { lossNotes, sealNote } from "./actions.js";
import { DayCharts } from "./day.js";
import { h, icon, put, scroller } from "./dom.js";
import { Joins } from "./joins.js";
import { nowMs } from "./server.js";
import { lacks, resultParts, stageWords, whyLost } from "./stages.js";
import { age, clock, count, date, moment, ms, rate, times, utc, visible, zoneName } from "./words.js";

const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

const tile = (name, value, ...below) =>
  h("div", { class: "tile", "data-tile": name }, h("h2", {}, name), h("b", {}, value), h("p", {}, below));

export class Overview {
  path = () => "overview";

  constructor(page) {
    this.page = page;
    this.strip = h("section", { class: "strip", "aria-label": "Today" });
    this.notes = h("div", { class: "notes" });
    this.charts = new DayCharts();
    this.joins = new Joins();
    this.table = h("table", {});
    this.topics = h("article", {}, h("h2", {}, "Topics"), scroller("Topics", this.table));
    this.reasons = h("article", {});
    const below = h("section", { class: "columns" }, this.topics, this.reasons);
    this.root = h("div", { class: "view" }, this.strip, this.notes, this.charts.root, this.joins.root, below);
  }

  show(data) {
    this.data = data;
    this.tick();
    const unfinished = data.unfinished.slice(0, 5);
    const { intake_held: held, clocks } = data.stream;
    const outside = Object.entries(data.day.session.outside).filter(([, rows]) => rows);
    put(
      this.notes,
      held && h("p", { class: "note warn", "data-note": "held" }, icon("warn"), h("span", {}, visible(held))),
      data.stream.slow_disks &&
        h("p", { class: "note warn", "data-note": "disk" }, icon("warn"), h("span", {}, `A disk is ${data.stream.slow_disks}. Every epoch waits for it.`)),
      clocks && h("p", { class: "note warn", "data-note": "clocks" }, icon("warn"), h("span", {}, visible(clocks))),
      outside.length > 0 &&
        h(
          "p",
          { class: "note warn", "data-note": "outside" },
          icon("warn"),
          h("span", {}, `${outside.map(([topic, rows]) => `${count(rows)} rows of ${visible(topic)}`).join(", ")} happened outside the day of ${date(data.day.session.session)}. They are joined all the same.`),
        ),
      unfinished.length > 0 &&
        h(
          "p",
          { class: "note warn" },
          icon("warn"),
          h("span", {}, "Not proved complete: "),
          unfinished.map((day) => h("a", { href: `#sessions/${day}`, "data-key": day }, date(day))),
        ),
      data.commands_waiting > 0 &&
        h("p", { class: "note" }, icon("wait"), h("span", {}, `${times(data.commands_waiting, "command")} not answered by the stream yet. `), h("a", { href: "#decisions" }, "Look")),
      sealNote(this.page, data.pending_seal),
      ...lossNotes(this.page, data.loss, data.accepted_losses),
      data.moves_waiting > 0 &&
        h("p", { class: "note" }, icon("move"), h("span", {}, `${times(data.moves_waiting, "group")} to be moved in the next epochs.`)),
    );
    const own = data.day.session.session === data.open;
    this.charts.show(data.day, own ? data.slots : null);
    this.joins.show(data.joins);
    this.showTopics(data);
    this.showReasons(data);
  }

  /** What changes with the clock. */
  tick() {
    const { day, stream } = this.data;
    const { session, stage, close_ms: close } = day;
    const words = stageWords(stage);
    const rows = sum(session.rows_in);
    const lag = stream.lag_rows;
    const reasons = Object.entries(this.data.quarantine);
    const own = session.session === this.data.open;
    // What the stream does now is about the open session; of an ended one there are its own figures.
    const delay = own ? stream : session;
    put(
      this.strip,
      h(
        "div",
        { class: `today ${words.kind}` },
        icon(words.shape),
        h(
          "div",
          {},
          h("h1", {}, h("strong", { "data-stage": stage }, words.word), " ", h("span", {}, date(session.session))),
          h("p", {}, this.when(session, stage, close)),
        ),
      ),
      h(
        "div",
        { class: "tiles" },
        tile("rows in", count(rows), own ? rate(stream.rows_per_s, "rows") : "of the whole day"),
        tile(
          stage === "complete" ? "results" : "results so far",
          count(session.results_run_time + (session.results_cleanup ?? 0) + (session.results_corrections ?? 0)),
          resultParts(session).length === 1
            ? rate(stream.results_per_s, "results")
            : resultParts(session).join(", "),
        ),
        tile("production delay", ms(delay.delay_p50_ms), `median; p99 ${ms(delay.delay_p99_ms)}`),
        tile("lag", lag === null ? "unknown" : count(lag), lag === null ? "Kafka does not answer" : lag === 1 ? "row waits in Kafka" : "rows wait in Kafka"),
        tile(
          "quarantine",
          count(session.rejected),
          rows ? `${((100 * session.rejected) / rows).toFixed(2)} % of the rows` : "no rows yet",
          reasons.length > 0 && h("span", { class: "visually-hidden" }, `, most often: ${visible(reasons[0][0])}`),
        ),
        own && this.data.event_time && this.watermark(this.data.event_time, session),
      ),
    );
  }

  /** How far the time of a query with windows has come. */
  watermark(time, session) {
    const partitions = (by) => sum(Object.fromEntries(Object.entries(by).map(([topic, each]) => [topic, each.length])));
    if (time.watermark === null) {
      return tile("watermark", "none yet", `${times(partitions(time.unheard), "partition")} had no row`);
    }
    const at = new Date(time.watermark).getTime();
    const idle = partitions(time.idle);
    const ahead = `newest row ${age(Math.max(0, ...Object.values(time.ahead_s)))} ahead`;
    const rows = `${count(session.expired_rows)} rows expired`;
    return tile("watermark", `${clock(at)} ${zoneName(at)}`, idle ? `${ahead}; ${times(idle, "partition")} idle` : `${ahead}; ${rows}`);
  }

  when(session, stage, close) {
    const at = (ms_) => h("time", { title: utc(ms_), datetime: new Date(ms_).toISOString() }, `${clock(ms_)} ${zoneName(ms_)}`);
    if (stage === "open" && close) {
      const left = (close - nowMs()) / 1000;
      const exchange = `${visible(this.page.me.calendar)} `;
      return left > 0
        ? [exchange, "closes at ", at(close), `, in ${age(Math.max(left, 60))}`]
        : [exchange, "closed at ", at(close), `, ${age(-left)} ago; not sealed yet`];
    }
    if (stage === "cleaning" && session.cleanup_ranges) {
      return `${count(session.cleanup_ranges_done)} of ${count(session.cleanup_ranges)} hash ranges are done`;
    }
    if (session.verdict) {
      const checked = new Date(session.verdict.verified_at).getTime();
      const why = session.verdict.missing === null && whyLost(session.accepted_losses);
      const found = stage === "incomplete" ? `${lacks(session.verdict)}${why ? ` (${why})` : ""}; ` : "";
      return [found, "checked at ", h("time", { title: utc(checked) }, moment(checked))];
    }
    if (session.unproved) return session.unproved;
    if (session.ended_at) {
      const ended = new Date(session.ended_at).getTime();
      return ["sealed at ", at(ended), session.seal_by ? ` by ${visible(session.seal_by)}` : ""];
    }
    return stageWords(stage).says;
  }

  showTopics(data) {
    const { session } = data.day;
    const open = session.session === data.open;
    // What was rejected and filtered is known by topic of the open session only.
    const columns = [
      ["rows", (t) => (open ? t.rows : session.rows_in[t.topic] ?? 0)],
      ...(open ? [["rejected", (t) => t.rejected], ["filtered", (t) => t.filtered]] : []),
      ["waiting", (t) => t.lag_rows],
    ];
    this.topics.dataset.topics = session.session;
    put(
      this.table,
      h("thead", {}, h("tr", {}, ["topic", ...columns.map(([word]) => word)].map((t, i) => h("th", { scope: "col", class: i && "number" }, t)))),
      h(
        "tbody",
        {},
        data.topics.map((t) => h("tr", {}, h("th", { scope: "row" }, visible(t.topic)), columns.map(([, of]) => h("td", { class: "number" }, count(of(t)))))),
      ),
    );
  }

  showReasons(data) {
    const reasons = Object.entries(data.quarantine).slice(0, 8);
    const most = reasons[0]?.[1] ?? 1;
    put(
      this.reasons,
      h("h2", {}, "Quarantine, by reason ", h("small", {}, "of all sessions")),
      reasons.length === 0
        ? h("p", { class: "muted" }, "No row of this warehouse broke its contract.")
        : h(
            "ul",
            { class: "bars" },
            reasons.map(([reason, n]) =>
              h(
                "li",
                { title: visible(reason) },
                h("span", { class: "text" }, visible(reason)),
                h("span", { class: "number" }, count(n)),
                h("span", { class: "bar", style: { "--part": String(n / most) } }),
              ),
            ),
          ),
    );
  }

  end() {
    this.charts.end();
  }
}
