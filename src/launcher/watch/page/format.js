// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people.

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A short form for axes and tables. Strings ("NaN") are unchanged. */
export function number(value) {
  if (typeof value === "string") return value;
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${+(value / (letter === "k" ? 1e3 : unit)).toPrecision(4)} ${letter}`;
  }
  return String(+value.toPrecision(4));
}

/** Six significant digits. Strings ("NaN") are unchanged. */
export function exact(value) {
  if (typeof value === "string") return value;
  if (!isNumber(value)) return "–";
  return Number.isInteger(value) && Math.abs(value) < 1e15 ? String(value) : String(+value.toPrecision(6));
}

// Making a format takes far longer than using it.
const WHOLE = new Intl.NumberFormat("en");
const MOMENT = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
const OF_THIS_YEAR = new Intl.DateTimeFormat("en-GB", MOMENT);
const OF_ANY_YEAR = new Intl.DateTimeFormat("en-GB", { ...MOMENT, year: "numeric" });

export const whole = (value) => isNumber(value) ? WHOLE.format(Math.round(value)) : "–";

export function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  if (value < 1e-3) return `${+(value * 1e6).toPrecision(3)} µs`;
  if (value < 1) return `${+(value * 1e3).toPrecision(3)} ms`;
  return value < 100 ? `${+value.toPrecision(3)} s` : duration(value);
}

export function duration(value) {
  if (!isNumber(value)) return "–";
  const total = Math.round(value);
  if (Math.abs(value) < 10) return `${+value.toPrecision(2)} s`;
  if (total < 60) return `${total} s`;
  const pair = (big, small, bigName, smallName) =>
    `${big} ${bigName}` + (small ? ` ${small} ${smallName}` : "");
  if (total < 3600) return pair(Math.floor(total / 60), total % 60, "min", "s");
  if (total < 86400) return pair(Math.floor(total / 3600), Math.floor((total % 3600) / 60), "h", "min");
  return pair(Math.floor(total / 86400), Math.floor((total % 86400) / 3600), "d", "h");
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return `${+value.toPrecision(3)} ${units[unit]}`;
}

export const percent = (value) => isNumber(value) ? `${+(value * 100).toPrecision(3)} %` : "–";

/** "2 Nov 14:05", with the year if it is another one. */
export function moment(time) {
  if (!isNumber(time) || time <= 0) return "–";
  const date = new Date(time * 1000);
  const format = date.getFullYear() === new Date().getFullYear() ? OF_THIS_YEAR : OF_ANY_YEAR;
  return format.format(date).replace(",", "");
}

export function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

/** Sorts losses first, then learning rates. */
export function metricOrder(name) {
  const lower = name.toLowerCase();
  if (lower.includes("loss")) return 0;
  return lower === "lr" || lower.includes("learning_rate") ? 1 : 2;
}

export const compareMetrics = (a, b) => metricOrder(a) - metricOrder(b) || a.localeCompare(b);

/** Which value of a metric is the best: "lowest", "highest", or null if unknown. */
export function bestOf(name) {
  if (/loss|error|perplexity|ppl|\b(wer|cer|mse|mae|rmse)\b/i.test(name)) return "lowest";
  return /acc|f1|bleu|rouge|score|auc|precision|recall|reward|\bmap\b/i.test(name) ? "highest" : null;
}
