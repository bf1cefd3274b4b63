// The page: tabs, what is looked at now, and looking again every two seconds.

import { Actions } from "./actions.js";
import { Decisions } from "./decisions.js";
import { h, icon, put } from "./dom.js";
import { Groups } from "./groups.js";
import { Overview } from "./overview.js";
import { leave, nowMs, Refused, seen, view } from "./server.js";
import { Sessions } from "./sessions.js";
import { age, count, setZone, visible } from "./words.js";

const EVERY_MS = 2000;
const AGAIN_MS = 5000;
const STALE_S = 15;

const VIEWS = {
  overview: ["Overview", (page) => new Overview(page)],
  groups: ["Groups", (page, rest) => new Groups(page, rest)],
  decisions: ["Decisions", (page) => new Decisions(page)],
  sessions: ["Sessions", (page, rest) => new Sessions(page, rest)],
};

const EMPTY = {
  "no warehouse": "No stream has run yet",
  empty: "No stream has run yet",
  settings: "Spillway's settings cannot be read",
  failed: "The tables cannot be read",
  looking: "Reading the tables…",
};

class Page {
  me = null;
  slots = null;
  open = null;
  pending = null;

  constructor() {
    this.main = document.getElementById("main");
    this.notice = document.getElementById("notice");
    this.live = document.querySelector(".live");
    this.actions = new Actions(this);
    this.button = h("button", { type: "button", class: "main", disabled: true, onclick: () => this.actions.open("rebalance") }, "Actions");
    put(
      document.querySelector(".tabs"),
      Object.entries(VIEWS).map(([name, [word]]) => h("a", { href: `#${name}`, "data-view": name }, word)),
    );
    document.querySelector(".bar").append(this.button);
    addEventListener("hashchange", () => this.route());
    document.addEventListener("visibilitychange", () => !document.hidden && this.look());
    setInterval(() => this.tick(), 1000);
    this.route();
  }

  route() {
    const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    const chosen = VIEWS[name] ? name : "overview";
    if (chosen === this.name && this.view.choose) {
      this.view.choose(rest[0]);
    } else if (chosen !== this.name) {
      this.view?.end();
      this.name = chosen;
      this.shown = null;
      this.view = VIEWS[chosen][1](this, rest[0]);
      put(this.main, this.view.root);
      this.view.root.hidden = true;
      if (!this.stream) this.empty({ problem: "looking", says: "The first look at a warehouse takes some seconds." });
    }
    for (const tab of document.querySelectorAll(".tabs a")) {
      if (tab.dataset.view === chosen) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = `${VIEWS[chosen][0]} – Spillway`;
    this.remember();
    this.look();
  }

  /** Let Airflow's address name what is looked at, so that it can be kept and sent. */
  remember() {
    if (window.parent === window) return;
    try {
      const { history, location: outer } = window.parent;
      const [plugin] = outer.pathname.match(/^.*\/plugin\/[^/]+/) ?? [];
      if (!plugin) return;
      const path = `${plugin}${location.pathname}${location.hash}`;
      history.replaceState(history.state, "", path);
    } catch {
      // a frame of another origin: its address is its own
    }
  }

  /** Look now, and from then on again and again. */
  async look() {
    clearTimeout(this.timer);
    this.stop?.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    let wait = EVERY_MS;
    try {
      if (!this.me?.zone) await this.meet(signal);
      await this.see(signal);
      this.failing = null;
    } catch (error) {
      if (signal.aborted) return;
      this.failing = error;
      wait = AGAIN_MS;
    }
    this.tick();
    if (!document.hidden) this.timer = setTimeout(() => this.look(), wait);
  }

  async meet(signal) {
    const { data } = await view("me", signal);
    if (setZone(data.zone)) this.shown = null; // whatever was drawn has other times
    const may = Object.values(data.may).some(Boolean);
    this.button.disabled = !may;
    this.button.title = may ? "" : `You may look, and not act: that needs the right to start runs of ${data.dags.rebalance} or ${data.dags.market_close}.`;
    this.choose(data.pages);
    this.me = data; // before the first look its zone is empty: then it is asked for again
  }

  /** One query of several: its page is another one. */
  choose(pages) {
    this.chooser?.remove();
    if (pages.length < 2) return;
    const select = h(
      "select",
      { id: "query", "aria-label": "Query", onchange: () => leave(`plugin/${select.value}/${select.value}/`) },
      pages.map((each) => h("option", { value: each.section, selected: each.here }, each.name)),
    );
    this.chooser = select;
    document.querySelector(".brand").after(select);
  }

  async see(signal) {
    const own = this.view;
    const path = own.path();
    const { data, changed } = await view(path, signal);
    if (own !== this.view || signal.aborted) return;
    if (data.problem) {
      this.shown = null;
      own.root.hidden = true;
      this.empty(data);
      return;
    }
    this.main.querySelector(".nothing")?.remove();
    own.root.hidden = false;
    if (changed || this.shown !== path) {
      this.shown = path;
      own.show(data);
    }
    await this.outline(signal);
    await own.also?.(signal);
  }

  /** What the bar and the actions need, whichever view is looked at. */
  async outline(signal) {
    const { data } = await view("overview", signal);
    if (!data.stream) return;
    this.stream = data.stream;
    this.slots = data.slots;
    this.open = data.open;
    this.pending = data.pending_seal;
  }

  empty({ problem, says }) {
    const start = problem === "no warehouse" || problem === "empty";
    const old = this.main.querySelector(".nothing");
    if (old?.dataset.problem === problem) return;
    old?.remove();
    this.main.append(
      h(
        "section",
        { class: "nothing", "data-problem": problem },
        icon(problem === "looking" ? "wait" : start ? "next" : "warn"),
        h("h1", {}, EMPTY[problem]),
        start
          ? [
              h("p", {}, "Start it: unpause and trigger the DAG ", h("code", {}, this.me?.dags.market_open ?? "market_open"), ", or run ", h("code", {}, "spillway stream"), ". This page shows the first epoch as soon as it is there."),
              h("p", { class: "muted" }, visible(says)),
            ]
          : h("p", { class: "muted" }, visible(says)),
      ),
    );
  }

  /** What changes with the clock: how old all this is. */
  tick() {
    if (this.view?.tick && this.view.data && !this.view.root.hidden) this.view.tick();
    const stream = this.stream;
    const looked = seen.lookedMs ? (nowMs() - seen.lookedMs) / 1000 : null;
    let kind = "good";
    let says = "";
    if (stream) {
      const last = stream.last_epoch_at && (nowMs() - new Date(stream.last_epoch_at)) / 1000;
      const ago = last === null ? "" : `last epoch ${age(last)} ago`;
      const lag = stream.lag_rows;
      const words = {
        new: ["wait", "no epoch yet"],
        working: ["good", `epoch ${count(stream.epoch)}, ${last === null ? "" : age(last)} ago`],
        quiet: ["quiet", `nothing waits, ${ago}`],
        held: ["bad", "no more rows are read: the session has as many results as it may have"],
        stalled: ["bad", `the stream stands still: ${count(lag)} rows wait, ${ago}`],
        unknown: ["warn", `Kafka does not answer, ${ago}`],
      };
      [kind, says] = words[stream.state];
    }
    let trouble = null;
    if (this.failing instanceof Refused) trouble = this.failing.message;
    else if (this.failing) trouble = "Airflow does not answer; this page tries again.";
    else if (seen.problem && stream) trouble = `The tables cannot be read any more (${seen.problem}).`;
    else if (looked !== null && looked > STALE_S) trouble = "The tables were not read for a while.";
    if (trouble && looked !== null) trouble += ` What you see is ${age(looked)} old.`;
    if (trouble) kind = "bad";
    put(this.live, says && [h("span", { class: `dot ${kind}`, "aria-hidden": "true" }), h("span", {}, says)]);
    this.notice.hidden = !trouble;
    if (trouble !== this.trouble) put(this.notice, trouble && [icon("warn"), trouble]);
    this.trouble = trouble;
    document.body.classList.toggle("stale", Boolean(trouble));
  }
}

new Page();
