// What people may do: say why, see what will happen, then ask for it. Whether the stream obeys is
// for the stream to say; the outcome here is that of asking.

import { chip, h, icon, put, scroller } from "./dom.js";
import { act, close, Refused, runPath, leave } from "./server.js";
import { whyLost } from "./stages.js";
import { bytes, count, date, times, visible } from "./words.js";

const MIB = 1048576;

const KINDS = {
  rebalance: { word: "Rebalance", dag: "rebalance" },
  spill: { word: "Force a spill", dag: "rebalance" },
  seal: { word: "Seal now", dag: "market_close" },
  withdraw: { word: "Withdraw a seal", dag: "market_close" },
  loss: { word: "Accept a loss", dag: "market_close" },
  cleanup: { word: "Backfill a day", dag: "market_close" },
};

export class Actions {
  draft = "";

  constructor(page) {
    this.page = page;
    this.body = h("div", { class: "drawer-body" });
    this.tabs = h("div", { class: "segments", role: "radiogroup", "aria-label": "What to do" });
    this.dialog = h(
      "dialog",
      { class: "drawer", "aria-labelledby": "actions-title" },
      h(
        "div",
        { class: "head" },
        h("h2", { id: "actions-title" }, "Actions"),
        h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => this.dialog.close() }, "Close"),
      ),
      this.tabs,
      this.body,
    );
    document.body.append(this.dialog);
    this.dialog.addEventListener("close", () => {
      this.given = {};
      this.draft = "";
    });
  }

  /** Show the form of an action; `given`: what is known already. */
  open(kind, given = {}) {
    this.kind = kind;
    this.given = given;
    put(
      this.tabs,
      Object.entries(KINDS).map(([name, { word, dag }]) =>
        h(
          "label",
          {},
          h("input", {
            type: "radio",
            name: "action",
            value: name,
            checked: name === kind,
            disabled: !this.page.me.may[dag],
            onchange: () => {
              this.draft = ""; // what one action is done for is no reason for another
              this.open(name);
            },
          }),
          h("span", {}, word),
        ),
      ),
    );
    this.form();
    if (!this.dialog.open) this.dialog.showModal();
  }

  form() {
    const fields = { rebalance: () => this.rebalance(), spill: () => this.spill(), seal: () => this.seal(), withdraw: () => this.withdraw(), loss: () => this.loss(), cleanup: () => this.cleanup() };
    put(this.body, fields[this.kind]());
    this.body.querySelector("textarea, select, input")?.focus();
  }

  /** A form: its fields, the reason, and its buttons. */
  frame(says, fields, buttons) {
    this.reason = h("textarea", { id: "reason", name: "reason", required: true, minlength: 3, maxlength: 500, rows: 2 });
    this.reason.value = this.draft;
    this.error = h("p", { class: "refusal", role: "alert" });
    return h(
      "form",
      { onsubmit: (event) => event.preventDefault() },
      h("p", { class: "muted" }, says),
      fields,
      h("label", { class: "field", for: "reason" }, h("span", {}, "Reason"), this.reason, h("small", { class: "muted" }, "Kept with your name.")),
      this.error,
      h("div", { class: "buttons" }, buttons),
    );
  }

  button(word, kind, done) {
    const check = () => {
      put(this.error);
      if (this.reason.value.trim().length < 3) {
        put(this.error, "Say why, in a few words.");
        this.reason.focus();
        return;
      }
      done(this.reason.value.trim());
    };
    return h("button", { type: "button", class: kind, onclick: check }, word);
  }

  rebalance() {
    const { policies, policy } = this.page.me;
    const select = h(
      "select",
      { id: "policy", name: "policy" },
      h("option", { value: "" }, `${policy} (rebalance.policy)`),
      policies.filter((name) => name !== policy).map((name) => h("option", { value: name }, name)),
    );
    const body = (reason, dry) => ({ dry_run: dry, policy: select.value || null, reason });
    const now = (reason) =>
      this.confirm(
        ["The controller decides by ", h("b", {}, select.value || policy), " and asks the stream to move or spill groups, if that helps. Moves are exact, and the stream goes on."],
        reason,
        () => this.run("rebalance", body(reason, false), (found) => this.plan(found, false)),
      );
    return this.frame(
      "The controller looks at the newest statistics and decides what to move or spill, once.",
      h("label", { class: "field", for: "policy" }, h("span", {}, "Policy"), select),
      [
        this.button("Dry run", "", (reason) =>
          this.run("rebalance", body(reason, true), (found) => this.plan(found, true), () => now(reason)),
        ),
        this.button("Rebalance now…", "main", now),
      ],
    );
  }

  spill() {
    const slots = this.page.slots ?? [];
    const slot = h(
      "select",
      { id: "slot", name: "slot" },
      slots.map((each) => h("option", { value: each.slot }, `slot ${each.slot}: ${bytes(each.state_bytes)} of ${bytes(each.budget_bytes)}`)),
    );
    const size = h("input", { id: "size", name: "size", type: "number", min: "0.1", step: "0.1", value: "1" });
    if (!slots.length) return h("p", { class: "muted" }, "There is no slot yet: the stream has not run.");
    return this.frame(
      "One slot writes the groups that lose least to the spill table, at its next epoch. Their results come at cleanup.",
      [
        h("label", { class: "field", for: "slot" }, h("span", {}, "Slot"), slot),
        h("label", { class: "field", for: "size" }, h("span", {}, "At least, in MiB"), size),
      ],
      [
        this.button("Spill…", "main", (reason) => {
          const wanted = Math.round(Number(size.value) * MIB);
          if (!(wanted > 0)) {
            put(this.error, "Say how much: more than 0 MiB.");
            size.focus();
            return;
          }
          this.confirm(
            ["Slot ", h("b", {}, slot.value), " spills at least ", h("b", {}, bytes(wanted)), ". What is spilled gives no more results until cleanup or until newer rows meet."],
            reason,
            () => this.run("spill", { slot: Number(slot.value), bytes: wanted, reason }, (found) => this.plan(found, false)),
          );
        }),
      ],
    );
  }

  seal() {
    const session = this.page.open;
    if (!session) return h("p", { class: "muted" }, "There is no open session: the stream has not run.");
    if (this.page.pending?.session === session) {
      return h("p", { class: "muted" }, `A seal of ${date(session)} is pending already; the stream has not reached its end everywhere yet.`);
    }
    return this.frame(
      ["Ends the input of the open session, ", h("b", {}, date(session)), ", where its topics end now."],
      [],
      [
        this.button("Seal now…", "danger", (reason) =>
          this.confirm(
            ["The session ", h("b", {}, date(session)), " ends with the rows that Kafka holds now. Rows after that belong to the next session. Until the stream has read one of those, the seal can be withdrawn."],
            reason,
            () => this.run("seal", { session, reason }, (found) => this.said(found)),
            "danger",
          ),
        ),
      ],
    );
  }

  withdraw() {
    const pending = this.page.pending;
    if (!pending) return h("p", { class: "muted" }, "No seal is pending: there is nothing to take back. A session that is sealed stays sealed.");
    if (pending.problem) return h("p", { class: "refusal" }, `The seal of ${date(pending.session)} cannot be withdrawn: ${visible(pending.problem)}.`);
    const session = pending.session;
    return this.frame(
      ["Takes back the seal of ", h("b", {}, date(session)), ", whose end the stream has not passed."],
      [],
      [
        this.button("Withdraw…", "main", (reason) =>
          this.confirm(
            ["The session ", h("b", {}, date(session)), " stays open, as if its seal had never been, until it is sealed again. If the stream reads a row beyond the seal's end first, it refuses."],
            reason,
            () => this.run("withdraw", { session, reason }, (found) => this.said(found)),
          ),
        ),
      ],
    );
  }

  loss() {
    const session = h("input", { id: "session", name: "session", type: "date", required: true, value: this.given.session ?? this.page.open ?? "" });
    return this.frame(
      "Kafka is asked which rows of a session it does not hold any more; nothing is accepted that is still there. The stream, cleanup and verify then do without them.",
      h("label", { class: "field", for: "session" }, h("span", {}, "Session"), session),
      [
        this.button("Accept…", "danger", (reason) => {
          if (!session.value) {
            put(this.error, "Choose a day.");
            session.focus();
            return;
          }
          const day = session.value;
          this.confirm(
            ["What Kafka has lost of ", h("b", {}, date(day)), " is given up. Results that need these rows are missing for good, all others are right, and the day ends as not complete. Of an open session this cannot be taken back."],
            reason,
            () => this.run("loss", { session: day, reason }, (found) => this.said(found)),
            "danger",
          );
        }),
      ],
    );
  }

  cleanup() {
    const session = h("input", { id: "session", name: "session", type: "date", required: true, value: this.given.session ?? "" });
    return this.frame(
      `Starts a run of ${this.page.me.dags.market_close} for one day: seal (when it is not), cleanup, verify. Nothing is doubled, however often it runs.`,
      h("label", { class: "field", for: "session" }, h("span", {}, "Session"), session),
      [
        this.button("Backfill…", "main", (reason) => {
          if (!session.value) {
            put(this.error, "Choose a day.");
            session.focus();
            return;
          }
          const day = session.value;
          this.confirm(
            ["Airflow seals, cleans up and proves ", h("b", {}, date(day)), " again; what is done already is left as it is."],
            reason,
            () => this.backfill(day, reason),
          );
        }),
      ],
    );
  }

  /** What will happen, and who said so; nothing has happened yet. */
  confirm(says, reason, go, kind = "main") {
    this.draft = reason; // whoever goes back need not write it again
    const yes = h("button", { type: "button", class: kind, onclick: go }, "Do it");
    put(
      this.body,
      h(
        "div",
        { class: "confirm", role: "group", "aria-label": "Confirm" },
        h("p", {}, says),
        h("p", { class: "muted" }, "Kept: ", h("q", {}, reason), ` by ${visible(this.page.me.name)}`),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => this.form() }, "Back"), yes),
      ),
    );
    yes.focus();
  }

  /** Ask for it and show the answer; `then`: what a dry run leads to. */
  async run(what, body, show, then) {
    put(this.body, h("p", { class: "busy", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Asking…"));
    try {
      const found = await act(what, body);
      this.draft = "";
      put(this.body, show(found), this.back(then && h("button", { type: "button", class: "main", onclick: then }, "Rebalance now…")));
    } catch (error) {
      put(this.body, this.refused(error), this.back());
    }
    this.page.look();
  }

  async backfill(session, reason) {
    put(this.body, h("p", { class: "busy", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Starting the run…"));
    try {
      const dag = this.page.me.dags.market_close;
      const run = await close(dag, session, reason);
      this.draft = "";
      const path = runPath(dag, run.dag_run_id);
      put(
        this.body,
        h("p", { role: "status" }, chip("good", "check", "started"), " ", h("a", { href: `../${path}`, onclick: (event) => { event.preventDefault(); leave(path); } }, run.dag_run_id)),
        this.back(),
      );
    } catch (error) {
      put(this.body, this.refused(error), this.back());
    }
  }

  back(further) {
    return h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => this.form() }, "Back"), further);
  }

  refused(error) {
    const says = error instanceof Refused ? error.message : "Airflow does not answer: nothing was asked for.";
    return h("p", { class: "refusal", role: "alert" }, chip("bad", "cross", "refused"), " ", visible(says));
  }

  said(found) {
    const fine = found.code === 0;
    return h(
      "div",
      { role: "status", class: "outcome" },
      h("p", {}, fine ? chip("good", "check", "asked for") : chip("bad", "cross", "refused")),
      h("pre", {}, found.lines.map(visible).join("\n")),
    );
  }

  /** What the controller would do, or has asked for; like moves are one row. */
  plan(outcome, dry) {
    const { found } = outcome;
    if (!found) return this.said(outcome);
    const rows = [];
    const alike = new Map();
    for (const { command, group, outcome: answer } of found.asked) {
      const move = command.kind === "move" ? { ...command.move, group } : null;
      const key = move ? JSON.stringify([move.to, command.reason, answer.obeyed || answer.reason]) : command.id;
      if (!alike.has(key)) alike.set(key, { command, group, answer, moves: [] });
      if (move) alike.get(key).moves.push(move);
    }
    for (const { command, group, answer, moves } of alike.values()) {
      rows.push([
        what(command, group, moves),
        answer.obeyed ? chip(dry ? "wait" : "good", dry ? "wait" : "check", dry ? "would be asked for" : "asked for") : chip("bad", "cross", "refused"),
        answer.obeyed ? command.reason : answer.reason,
      ]);
    }
    for (const each of found.declined) rows.push([`no ${each.what}`, chip("quiet", "quiet", "left alone"), each.why]);
    const asked = found.asked.filter((each) => each.outcome.obeyed).length;
    return h(
      "div",
      { role: "status", class: "outcome" },
      h("p", {}, dry ? h("b", {}, "Dry run: nothing was asked for.") : asked ? `${times(asked, "command")} asked for; the stream answers at its next epoch.` : "Nothing was asked for."),
      scroller(
        "Plan",
        h(
          "table",
          { class: "list", "data-plan": dry ? "dry" : "real" },
          h("thead", {}, h("tr", {}, ["what", "", "why"].map((t) => h("th", { scope: "col" }, t)))),
          h("tbody", {}, rows.map(([text, state, why]) => h("tr", {}, h("td", {}, visible(text)), h("td", {}, state), h("td", { class: "why" }, visible(why))))),
        ),
      ),
    );
  }
}

/** A seal that is asked for and not fulfilled, and the way to take it back. */
export function sealNote(page, pending) {
  if (!pending) return null;
  const final = Boolean(pending.problem);
  return h(
    "p",
    { class: "note", "data-note": "seal" },
    icon("lock"),
    h("span", {}, `A seal of ${date(pending.session)} is pending. ${final ? "It cannot be withdrawn any more: rows beyond its end are read." : "It can still be withdrawn."}`),
    page.me.may.market_close && !final && h("button", { type: "button", class: "small", "data-key": "withdraw", onclick: () => page.actions.open("withdraw") }, "Withdraw…"),
  );
}

const RANGES = 4;

/** What the open session has lost: what was accepted, and what somebody may accept. */
export function lossNotes(page, loss, losses) {
  if (!loss) return [];
  const told = (ranges) =>
    ranges.slice(0, RANGES).map((r) => `${visible(r.topic)}/${r.partition} from offset ${count(r.begin)} to ${count(r.end)}`).join(", ") +
    (ranges.length > RANGES ? ` and ${count(ranges.length - RANGES)} more` : "");
  const note = (kind, shape, name, words, ...more) => h("p", { class: `note ${kind}`, "data-note": name }, icon(shape), h("span", {}, words), ...more);
  const cannot = loss.never_read
    ? `${times(loss.never_read, "offset")} of it before they were read: the stream cannot go on`
    : "a lost slot could not be restored, nor the day proved";
  return [
    loss.accepted.length > 0 && note("", "warn", "loss-accepted", `Accepted as lost: ${told(loss.accepted)}. ${date(loss.session)} will end as not complete.`, losses.length > 0 && h("span", {}, ` ${whyLost(losses)}`)),
    loss.waits.length > 0 && note("", "wait", "loss-waits", `Accepted as lost, not answered by the stream yet: ${told(loss.waits)}.`),
    loss.gone.length > 0 &&
      note(
        "warn",
        "warn",
        "loss",
        [`Kafka does not hold ${told(loss.gone)} any more, ${cannot}. Where nobody has it: `, h("code", {}, `spillway accept-loss --session ${loss.session} --reason ...`)],
        page.me.may.market_close && h("button", { type: "button", class: "small", "data-key": "loss", onclick: () => page.actions.open("loss", { session: loss.session }) }, "Accept…"),
      ),
  ];
}

const NAMED = 3;

function what(command, group, moves) {
  if (moves.length) {
    const names = moves.slice(0, NAMED).map((m) => m.group).join(", ");
    const more = moves.length > NAMED ? ` and ${count(moves.length - NAMED)} more` : "";
    return `move ${names}${more} to slot ${moves[0].to} (${bytes(moves.reduce((t, m) => t + m.bytes, 0))})`;
  }
  if (command.kind === "spill") return `spill ${bytes(command.bytes)} at slot ${command.slot}`;
  if (command.kind === "slots") return `${command.slots} slots (${times(command.moves.length, "move")})`;
  return `${command.kind} ${group ?? ""}`;
}
