// Where a session stands and how the stream does, in words, shapes and colours.

import { chip } from "./dom.js";
import { count, visible } from "./words.js";

const STAGES = {
  open: ["run", "open", "open", "Rows are being joined."],
  sealing: ["wait", "wait", "sealing", "Its end is fixed; the stream has not reached it everywhere yet."],
  sealed: ["wait", "lock", "sealed", "Nothing is added to it at run time any more; cleanup comes next."],
  cleaning: ["clean", "sweep", "cleaning", "Missing results are being appended."],
  cleaned: ["wait", "sweep", "cleaned", "Every result is there; verify has not proved it yet."],
  complete: ["good", "check", "complete", "Proved: every result is there, each once."],
  incomplete: ["bad", "cross", "not complete", "verify found results missing or doubled, or its input is lost."],
  next: ["quiet", "next", "next", "Rows beyond the end of the session before belong to it already."],
};

export const stageChip = (stage) => {
  const [kind, shape, word, says] = STAGES[stage];
  return chip(kind, shape, word, says);
};

// Of a verdict that is not "complete": where nothing is known of what is missing, input is lost.
export const lacks = (verdict) =>
  verdict.missing === null ? "its input is lost" : `${count(verdict.missing)} missing, ${count(verdict.doubled)} doubled`;

// Who has accepted that input is lost, and why; what is not known is left out.
export const whyLost = (losses) =>
  losses.map((each) => [each.by, each.reason].filter(Boolean).map(visible).join(": ")).filter(Boolean).join("; ");

// Where a session's results come from: they add up to what is in the table.
export const resultParts = (session) =>
  [
    ["at run time", session.results_run_time],
    ["by cleanup", session.results_cleanup],
    ["by corrections", session.results_corrections],
  ].flatMap(([name, n]) => (n === null ? [] : [`${count(n)} ${name}`]));

export const stageWords = (stage) => {
  const [kind, shape, word, says] = STAGES[stage];
  return { kind, shape, word, says };
};
