// Colours of the heat map: viridis, whose steps stay apart for people who see red and green alike,
// and in grey.

const VIRIDIS = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37],
];

/** The colour at 0 to 1. */
export function viridis(t) {
  const at = Math.min(1, Math.max(0, t)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const mixed = VIRIDIS[i].map((low, c) => Math.round(low + (VIRIDIS[i + 1][c] - low) * (at - i)));
  return `rgb(${mixed.join(",")})`;
}

/** The value that a part of the values does not exceed. */
const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];

/** Values to 0..1: logarithmic between what nearly all of them lie between; null for none. */
export function scaleOf(values) {
  const some = values.filter((v) => v > 0).sort((a, b) => a - b);
  if (some.length === 0) return { at: () => null, low: 0, high: 0, of: () => 0 };
  const low = quantile(some, 0.02);
  const high = Math.max(quantile(some, 0.99), low * 1.0001);
  const [a, b] = [Math.log(low), Math.log(high)];
  return {
    low,
    high,
    at: (v) => (v > 0 ? Math.min(1, Math.max(0, (Math.log(v) - a) / (b - a))) : null),
    of: (t) => Math.exp(a + (b - a) * t),
  };
}
