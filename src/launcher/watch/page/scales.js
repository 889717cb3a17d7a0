// SPDX-License-Identifier: Apache-2.0
// Computes ticks and ranges of axes, and the lines of a series.
import { isNumber } from "./format.js";

const LEAST_TICKS = 3;
// Values further away than this many heights of the bulk are far.
const FAR = 3;

function multiples(low, high, step) {
  // Adding 0 turns a tick of -0 into 0.
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step + 0);
  return found;
}

/** About `count` round numbers between `low` and `high`; bytes are round in their units. */
export function ticks(low, high, count, isBytes = false) {
  const unit = isBytes ? 1024 ** Math.max(Math.floor(Math.log(high) / Math.log(1024)), 0) : 1;
  const rough = (high - low) / unit / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  return multiples(low, high, unit * power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999));
}

export function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400];
  return multiples(low, high, steps.find((one) => one >= rough && (one >= 1 || high <= 10)) ?? 86400 * Math.ceil(rough / 86400));
}

/** At most about `count` round numbers between 10^`low` and 10^`high`. */
export function logTicks(low, high, count) {
  const of = (digits, every) => {
    const found = [];
    for (let power = Math.floor(low / every) * every; power <= high; power += every) {
      for (const digit of digits) {
        const exponent = power + Math.log10(digit);
        if (exponent >= low && exponent <= high) found.push(Number(`${digit}e${power}`));
      }
    }
    return found;
  };
  const some = of([1, 2, 5], 1);
  if (some.length < LEAST_TICKS) {
    // Use equal steps, with enough room between the highest ticks.
    const [from, to] = [10 ** low, 10 ** high];
    return ticks(from, to, (to - from) / (to * (1 - 10 ** ((low - high) / count))));
  }
  if (some.length <= count) return some;
  for (let every = 1; ; every += 1) if (of([1], every).length <= count) return of([1], every);
}

const sort = (values) => values.sort((a, b) => a - b);
const quantile = (sorted, share, round) => sorted[round(share * (sorted.length - 1))];

/**
 * Returns two limits: values beyond them are far outside of the bulk. `lists` has the values of
 * each series. The bulk of a series is its middle 80 %. Single series far from the others do not
 * widen the limits.
 */
export function farLimits(lists, isFromZero) {
  const sorted = lists.filter((values) => values.length).map(sort);
  if (!sorted.length) return [-Infinity, Infinity];
  let low = quantile(sort(sorted.map((values) => quantile(values, 0.1, Math.floor))), 0.25, Math.floor);
  let high = quantile(sort(sorted.map((values) => quantile(values, 0.9, Math.ceil))), 0.75, Math.ceil);
  if (isFromZero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const far = FAR * (high - low);
  return far > 0 ? [low - far, high + far] : [-Infinity, Infinity];
}

/** Ranges of indices that one line connects, as pairs [begin, end). */
export function stretches(size, isThere, isBreak = () => false) {
  const found = [];
  let begin = -1;
  for (let i = 0; i <= size; i += 1) {
    const here = i < size && isThere(i);
    if (begin >= 0 && (!here || isBreak(i))) { found.push([begin, i]); begin = -1; }
    if (here && begin < 0) begin = i;
  }
  return found;
}

/** Returns whether there is an unusually long gap before a point. */
export function findBreaks(series) {
  const distances = [];
  for (let i = 1; i < series.x.length; i += 1) distances.push(series.x[i] - (series.xLast ?? series.x)[i - 1]);
  if (distances.length < 8) return () => false;
  const usual = [...distances].sort((a, b) => a - b)[Math.floor(distances.length / 2)];
  const widths = series.x.map((x, i) => (series.xLast ?? series.x)[i] - x).sort((a, b) => a - b);
  const limit = 5 * Math.max(usual, widths[Math.floor(widths.length / 2)]);
  return (i) => i > 0 && distances[i - 1] > limit;
}

/**
 * An exponential moving average, corrected for its beginning: after n values with the weight w,
 * the sum is divided by 1 - w^n. Values that are not numbers are left out. A mean of several
 * values, as `counts` says, moves the average as far as that many values.
 */
export function smoothed(values, weight, counts) {
  let [sum, scale] = [0, 1];
  return values.map((value, i) => {
    if (!isNumber(value)) return null;
    const kept = weight ** (counts?.[i] ?? 1);
    sum = kept * sum + (1 - kept) * value;
    scale *= kept;
    return sum / (1 - scale);
  });
}
