// Talking to the server: views with tags, actions with a reason, Airflow's own runs.

/** What went wrong, in words for people. */
export class Refused extends Error {
  constructor(status, says) {
    super(says);
    this.status = status;
  }
}

const WORDS = {
  401: "You are logged out of Airflow. Log in again, then open this page again.",
  403: "You may not do this here.",
};

async function problem(answer) {
  let says = WORDS[answer.status];
  try {
    const { detail } = await answer.json();
    if (!says) says = typeof detail === "string" ? detail : detail?.[0]?.msg;
  } catch {
    // an answer without JSON says nothing more than its number
  }
  return new Refused(answer.status, says || `The server answered with ${answer.status}.`);
}

const kept = new Map();
/** When the server looked at the tables, and how far its clock is ahead of this one. */
export const seen = { lookedMs: 0, aheadMs: 0, problem: null };

/** A view: `{data, changed}`; an unchanged one costs a few bytes. */
export async function view(path, signal) {
  const old = kept.get(path);
  const headers = old ? { "If-None-Match": old.tag } : {};
  const answer = await fetch(`data/${path}`, { headers, cache: "no-store", signal });
  const now = Number(answer.headers.get("Spillway-Now-Ms"));
  if (now) {
    seen.aheadMs = now - Date.now();
    seen.lookedMs = Number(answer.headers.get("Spillway-Looked-Ms"));
    seen.problem = answer.headers.get("Spillway-Problem");
  }
  if (answer.status === 304) return { data: old.data, changed: false };
  if (!answer.ok) throw await problem(answer);
  const data = await answer.json();
  const tag = answer.headers.get("ETag");
  kept.delete(path);
  if (tag) kept.set(path, { tag, data });
  if (kept.size > 20) kept.delete(kept.keys().next().value);
  return { data, changed: true };
}

export const nowMs = () => Date.now() + seen.aheadMs;

async function send(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    cache: "no-store",
  });
  if (!answer.ok) throw await problem(answer);
  return answer.json();
}

/** Do something: `{code, lines, found}` of the command line. */
export const act = (what, body) => send(`act/${what}`, body);

// Runs are Airflow's: its own API checks who may see and start them.
const dagPath = (id) => `../api/v2/dags/${encodeURIComponent(id)}`;

/** The newest run of each session, by its date; and whether the DAG is paused. */
export async function closings(id) {
  const [dag, runs] = await Promise.all([
    fetch(dagPath(id), { cache: "no-store" }),
    fetch(`${dagPath(id)}/dagRuns?limit=100&order_by=-run_after`, { cache: "no-store" }),
  ]);
  if (!runs.ok) throw await problem(runs);
  const found = new Map();
  for (const run of (await runs.json()).dag_runs) {
    const session = run.partition_key ?? run.conf?.session;
    if (session && !found.has(session)) found.set(session, { id: run.dag_run_id, state: run.state });
  }
  return { runs: found, paused: dag.ok ? (await dag.json()).is_paused : false };
}

/** Run seal, cleanup and verify of one day again. */
export const close = (id, session, reason) =>
  send(`${dagPath(id)}/dagRuns`, {
    logical_date: null,
    partition_key: session,
    conf: { reason },
    note: reason,
  });

export const runPath = (dag, id) => `dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(id)}`;

/** Go to a page of Airflow: this one lies in a frame that may not leave by itself. */
export function leave(path) {
  const url = new URL(`../${path}`, location.href);
  if (window.parent === window) {
    location.assign(url);
    return;
  }
  window.parent.history.pushState(null, "", url.pathname + url.search);
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: null }));
}
