// Numbers and times as people read them; the same rules as `spillway.report.words`.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
export const UNKNOWN = "–";

const three = (v) => (v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2));

export function bytes(size) {
  if (size === null || size === undefined) return UNKNOWN;
  let unit = 0;
  let value = size;
  while (Math.abs(value) >= 999.5 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit ? `${three(value)} ${BYTES[unit]}` : `${value.toFixed(0)} B`;
}

export const count = (n) => (n === null || n === undefined ? UNKNOWN : n.toLocaleString("en-US"));

export const times = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export const rate = (perS, word) =>
  `${perS >= 9.95 || perS === 0 ? count(Math.round(perS)) : perS.toFixed(1)} ${word}/s`;

export const number = (v) => (v === 0 ? "0" : Math.abs(v) >= 1000 ? count(Math.round(v)) : three(v));

export const part = (v) => `${Math.round(100 * v)} %`;

/** Short for an axis: 1.2 M. */
export function short(n) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
  }
  return String(Number(n.toPrecision(3)));
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [unit, name, below, belowName] of steps) {
    if (whole >= unit) {
      const rest = Math.floor((whole % unit) / below);
      return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${belowName}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** An age: whole seconds, so that it does not flicker. */
export const age = (seconds) => (seconds < 60 ? `${Math.max(0, Math.round(seconds))} s` : span(seconds));

export const ms = (v) => (v === null || v === undefined ? UNKNOWN : span(v / 1000));

let zone = "UTC";
const formats = new Map();

/** The exchange's time zone, by its name; whether that is another one than before. */
export function setZone(name) {
  if (!name || name === zone) return false;
  zone = name;
  formats.clear();
  return true;
}

function format(kind, options) {
  if (!formats.has(kind)) {
    formats.set(kind, new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour12: false, ...options }));
  }
  return formats.get(kind);
}

const HM = { hour: "2-digit", minute: "2-digit" };

export const clock = (at) => format("clock", HM).format(new Date(at));
export const clockS = (at) => format("clockS", { ...HM, second: "2-digit" }).format(new Date(at));

/** `5 Jan, 16:00:03 EST`. */
export const moment = (at) =>
  `${format("moment", { day: "numeric", month: "short", ...HM, second: "2-digit" }).format(new Date(at))} ${zoneName(at)}`;

/** `EST`: what the exchange's clock is called then. */
export const zoneName = (at) =>
  new Intl.DateTimeFormat("en-US", { timeZone: zone, timeZoneName: "short" })
    .formatToParts(new Date(at))
    .find((p) => p.type === "timeZoneName").value;

/** `16:00:03 EST, 21:00:03 UTC`: a moment in a chart, of whose day there is no doubt. */
export const clocks = (at) => `${clockS(at)} ${zoneName(at)}, ${new Date(at).toISOString().slice(11, 19)} UTC`;

export const utc = (at) => `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** `Mon 5 Jan 2026` of `2026-01-05`: a date has no time zone. */
export const date = (text) => {
  const day = new Date(`${text}T00:00:00Z`);
  return Number.isNaN(day.getTime())
    ? text
    : new Intl.DateTimeFormat("en-GB", {
        timeZone: "UTC", weekday: "short", day: "numeric", month: "short", year: "numeric",
      }).format(day).replace(",", "");
};

/** Text from outside on one line: control characters made visible. */
export const visible = (text) =>
  String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
