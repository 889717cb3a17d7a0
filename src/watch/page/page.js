// SPDX-License-Identifier: Apache-2.0
// Draws runs. What comes from a run is put in as text, never as markup.
"use strict";

const PARTS = {
  data: "waiting for data", forward: "forward", backward: "backward",
  communication: "waiting for ranks", optimizer: "optimizer", checkpoint: "checkpoints",
  captured: "captured step", other: "your own code",
};
const NUM_COLORS = 8;
const LIVE_MS = 2000;
// A long run is taken in by parts.
const READING_MS = 100;
const QUIET_MS = 10000;

// --- small things ------------------------------------------------------------

const byId = (id) => document.getElementById(id);

function make(tag, names, ...children) {
  const element = document.createElement(tag);
  if (names) element.className = names;
  element.append(...children.filter((child) => child !== null));
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function number(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${+(value / (letter === "k" ? 1e3 : unit)).toPrecision(4)} ${letter}`;
  }
  return String(+value.toPrecision(4));
}

function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  if (value < 1e-3) return `${+(value * 1e6).toPrecision(3)} µs`;
  if (value < 1) return `${+(value * 1e3).toPrecision(3)} ms`;
  return value < 100 ? `${+value.toPrecision(3)} s` : duration(value);
}

function duration(value) {
  if (!isNumber(value)) return "–";
  const total = Math.round(value);
  if (total < 60) return `${total} s`;
  const pair = (big, small, bigName, smallName) =>
    `${big} ${bigName}` + (small ? ` ${small} ${smallName}` : "");
  if (total < 3600) return pair(Math.floor(total / 60), total % 60, "min", "s");
  if (total < 86400) return pair(Math.floor(total / 3600), Math.floor((total % 3600) / 60), "h", "min");
  return pair(Math.floor(total / 86400), Math.floor((total % 86400) / 3600), "d", "h");
}

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return `${+value.toPrecision(3)} ${units[unit]}`;
}

const percent = (value) => isNumber(value) ? `${+(value * 100).toPrecision(3)} %` : "–";

function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

const last = (values) => {
  for (let i = values.length - 1; i >= 0; i -= 1) if (isNumber(values[i])) return values[i];
  return null;
};

// --- charts ------------------------------------------------------------------

/** Round numbers between two, about `count`; bytes are round in their units. */
function ticks(low, high, count, isBytes = false) {
  const unit = isBytes ? 1024 ** Math.max(Math.floor(Math.log(high) / Math.log(1024)), 0) : 1;
  const rough = (high - low) / unit / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  return multiples(low, high, unit * power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999));
}

function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400];
  return multiples(low, high, steps.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400));
}

function multiples(low, high, step) {
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

/** Runs of neighbours that are there, as pairs of begin and end. */
function stretches(size, isThere) {
  const found = [];
  let begin = -1;
  for (let i = 0; i <= size; i += 1) {
    const here = i < size && isThere(i);
    if (here && begin < 0) begin = i;
    if (!here && begin >= 0) { found.push([begin, i]); begin = -1; }
  }
  return found;
}

/**
 * One card. `update` takes
 *   series: [{name, color, x, y, low, high}], lines; with `low` and `high` a band around each
 *   stack: the same series lie upon each other
 *   marks: [{x, event}], format, formatX, fromZero, bad, scalable
 */
class Chart {
  constructor(title, isWide) {
    this.title = make("b", "", title);
    this.note = make("small");
    this.scale = make("button", "", "log");
    this.scale.type = "button";
    this.scale.title = "logarithmic scale";
    this.scale.addEventListener("click", () => {
      this.isLog = !this.isLog;
      this.render();
    });
    this.key = make("div", "key");
    this.plot = make("div", "plot");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.root = make("div", isWide ? "card wide" : "card",
      make("h3", "", this.title, this.note, this.scale), this.key, this.plot, this.tip);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.unpoint());
  }

  update(spec) {
    this.spec = spec;
    this.note.textContent = spec.bad ?? spec.note ?? "";
    this.note.className = spec.bad ? "bad" : "";
    this.scale.hidden = !spec.scalable;
    this.key.replaceChildren(...spec.series.map((one) => {
      const text = `${one.name} ${spec.format(last(one.y))}`;
      return make("span", one.color, make("i"), text);
    }));
    this.render();
  }

  /** Series as they are drawn: those of a stack lie on the ones before. */
  layers() {
    if (!this.spec.stack) return this.spec.series;
    let floor = null;
    return this.spec.series.map((one) => {
      const low = floor ?? one.y.map((value) => isNumber(value) ? 0 : null);
      const high = one.y.map((value, i) => isNumber(value) ? low[i] + value : null);
      floor = high;
      return { ...one, low, high };
    });
  }

  range(layers) {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const one of layers) {
      for (let i = 0; i < one.x.length; i += 1) {
        left = Math.min(left, one.x[i]);
        right = Math.max(right, one.x[i]);
        for (const value of [this.spec.stack ? null : one.y[i], one.low?.[i], one.high?.[i]]) {
          if (!isNumber(value) || (this.isLog && value <= 0)) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (!(left <= right) || !(low <= high)) return null;
    if (left === right) { left -= 0.5; right += 0.5; }
    if (this.isLog) {
      low = Math.log10(low);
      high = Math.log10(high);
    } else if (this.spec.stack || this.spec.fromZero) {
      low = Math.min(low, 0);
      high = Math.max(high, Number.MIN_VALUE);
    }
    const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    return { left, right, low: low === 0 && !this.isLog ? 0 : low - space, high: high + space };
  }

  render() {
    this.scale.setAttribute("aria-pressed", String(Boolean(this.isLog)));
    const width = this.plot.clientWidth || 400;
    const height = this.plot.clientHeight || 190;
    const layers = this.layers();
    const range = this.range(layers);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.title.textContent });
    this.plot.replaceChildren(svg);
    this.map = null;
    if (!range) {
      svg.append(draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data yet"));
      return;
    }
    const box = { left: 58, right: width - 8, top: 8, bottom: height - 22 };
    const toX = (x) => box.left + (x - range.left) / (range.right - range.left) * (box.right - box.left);
    const toY = (y) => {
      const value = this.isLog ? Math.log10(Math.max(y, Number.MIN_VALUE)) : y;
      return box.bottom - (value - range.low) / (range.high - range.low) * (box.bottom - box.top);
    };
    this.map = { box, range, toX, toY };
    this.drawAxes(svg, box, range, toX, toY);
    const at = (one, values, i) => `${toX(one.x[i]).toFixed(1)} ${toY(values[i]).toFixed(1)}`;
    for (const one of layers) {
      if (one.low) {
        const isThere = (i) => isNumber(one.low[i]) && isNumber(one.high[i]);
        const path = stretches(one.x.length, isThere).map(([begin, end]) => {
          const there = [...Array(end - begin).keys()].map((i) => i + begin);
          const up = there.map((i) => at(one, one.high, i));
          const down = there.reverse().map((i) => at(one, one.low, i));
          return `M${up.join("L")}L${down.join("L")}Z`;
        }).join("");
        svg.append(draw("path", { class: `${this.spec.stack ? "stack" : "band"} ${one.color}`, d: path }));
      }
      if (!this.spec.stack) {
        const isThere = (i) => isNumber(one.y[i]) && !(this.isLog && one.y[i] <= 0);
        const path = stretches(one.x.length, isThere).map(([begin, end]) => {
          const points = [];
          for (let i = begin; i < end; i += 1) points.push(at(one, one.y, i));
          return `M${points.join("L")}${points.length === 1 ? "h.01" : ""}`;
        }).join("");
        svg.append(draw("path", { class: `line ${one.color}`, d: path }));
      }
    }
    this.drawMarks(svg, box, range, toX);
    this.cross = draw("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
    svg.append(this.cross);
  }

  drawAxes(svg, box, range, toX, toY) {
    const lines = this.isLog
      ? logTicks(range.low, range.high)
      : ticks(range.low, range.high, (box.bottom - box.top) / 32, this.spec.format === bytes);
    for (const value of lines) {
      const y = toY(value);
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
        draw("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, this.spec.format(value)));
    }
    const isTime = this.spec.formatX === duration;
    const count = (box.right - box.left) / 62;
    for (const value of isTime ? timeTicks(range.left, range.right, count) : ticks(range.left, range.right, count)) {
      if (!isTime && !Number.isInteger(value)) continue;
      const x = toX(value);
      const anchor = x > box.right - 24 ? "end" : "middle";
      svg.append(draw("text", { x, y: box.bottom + 16, "text-anchor": anchor }, this.spec.formatX(value)));
    }
  }

  drawMarks(svg, box, range, toX) {
    let before = -Infinity;
    for (const mark of this.spec.marks ?? []) {
      if (mark.x < range.left || mark.x > range.right) continue;
      if (mark.event === "checkpoint") {
        if (toX(mark.x) < before + 10) continue; // They would be one blot.
        before = toX(mark.x);
      }
      const x = toX(mark.x).toFixed(1);
      const shape = mark.event === "checkpoint"
        ? draw("path", { class: "saved", d: `M${x} ${box.bottom - 8}l4 8h-8z` })
        : draw("line", { class: `mark ${mark.event === "finish" ? "finish" : ""}`, x1: x, x2: x, y1: box.top, y2: box.bottom });
      shape.append(draw("title", {}, mark.event));
      svg.append(shape);
    }
  }

  point(event) {
    if (!this.map) return;
    const { box, range } = this.map;
    const frame = this.plot.getBoundingClientRect();
    const along = (event.clientX - frame.left - box.left) / (box.right - box.left);
    const wanted = range.left + Math.min(Math.max(along, 0), 1) * (range.right - range.left);
    let nearest = null;
    for (const one of this.spec.series) {
      for (const x of one.x) {
        if (nearest === null || Math.abs(x - wanted) < Math.abs(nearest - wanted)) nearest = x;
      }
    }
    const rows = this.spec.series.map((one) => {
      let best = 0;
      for (let i = 1; i < one.x.length; i += 1) {
        if (Math.abs(one.x[i] - nearest) < Math.abs(one.x[best] - nearest)) best = i;
      }
      const spread = one.low && !this.spec.stack && one.low[best] !== one.high[best]
        ? ` (${this.spec.format(one.low[best])} to ${this.spec.format(one.high[best])})` : "";
      return make("div", one.color, make("i"), make("span", "", one.name),
        make("b", "", this.spec.format(one.y[best]) + spread));
    });
    this.tip.replaceChildren(make("div", "", make("span", "", this.spec.formatX(nearest))), ...rows);
    this.tip.hidden = false;
    const x = this.map.toX(nearest);
    this.cross.setAttribute("x1", x);
    this.cross.setAttribute("x2", x);
    this.cross.setAttribute("visibility", "visible");
    const isRight = x > this.plot.clientWidth / 2;
    this.tip.style.top = `${this.plot.offsetTop + 6}px`;
    this.tip.style.left = isRight ? "" : `${this.plot.offsetLeft + x + 12}px`;
    this.tip.style.right = isRight ? `${this.root.clientWidth - this.plot.offsetLeft - x + 12}px` : "";
  }

  unpoint() {
    this.tip.hidden = true;
    this.cross?.setAttribute("visibility", "hidden");
  }
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    for (const digit of high - low > 3 ? [1] : [1, 2, 5]) {
      const exponent = power + Math.log10(digit);
      if (exponent >= low && exponent <= high) found.push(digit * 10 ** power);
    }
  }
  return found;
}

// --- what is shown -----------------------------------------------------------

const page = { runs: [], focus: 0, axis: "step", charts: new Map(), log: "", isLost: false };

const shownRuns = () => page.runs.filter((run) => run.isShown && run.data);
const focused = () => page.runs[page.focus];

/** The chart of this key in its place, made where there is none; others go. */
function layCharts(place, wanted) {
  const keys = new Set(wanted.map(([key]) => key));
  for (const [key, chart] of page.charts) {
    if (chart.place === place && !keys.has(key)) {
      chart.root.remove();
      page.charts.delete(key);
    }
  }
  let before = null;
  for (const [key, title, spec, isWide] of wanted) {
    let chart = page.charts.get(key);
    if (!chart) {
      chart = new Chart(title, isWide);
      chart.place = place;
      page.charts.set(key, chart);
    }
    const expected = before ? before.nextSibling : place.firstChild;
    if (chart.root !== expected) place.insertBefore(chart.root, expected);
    before = chart.root;
    chart.update(spec);
  }
}

function marksOf(run, axis) {
  return run.data.marks
    .filter((mark, i) => !(mark.event === "start" && i === 0))
    .map((mark) => ({ event: mark.event === "start" ? "restart" : mark.event, x: mark[axis] }))
    .filter((mark) => isNumber(mark.x));
}

function metricOrder(name) {
  const lower = name.toLowerCase();
  if (lower.includes("loss")) return 0;
  if (lower === "lr" || lower.includes("learning_rate")) return 1;
  return 2;
}

function showMetrics(runs) {
  const names = [...new Set(runs.flatMap((run) => run.data.metrics.map((metric) => metric.name)))];
  names.sort((a, b) => metricOrder(a) - metricOrder(b) || a.localeCompare(b));
  layCharts(byId("metrics"), names.map((name) => {
    const series = [];
    let bad;
    for (const run of runs) {
      const metric = run.data.metrics.find((one) => one.name === name);
      if (!metric) continue;
      if (metric.bad) bad = `${metric.bad.value} at step ${metric.bad.step}`;
      series.push({
        name: runs.length > 1 ? run.name : "latest", color: run.color,
        x: metric[page.axis], y: metric.mean, low: metric.low, high: metric.high,
      });
    }
    const spec = {
      series, bad, format: number, scalable: true,
      formatX: page.axis === "time" ? duration : (step) => number(step),
      marks: runs.length === 1 ? marksOf(runs[0], page.axis) : [],
    };
    return [`metric ${name}`, name, spec];
  }));
}

/** The lines of one quantity: of ranks where one run has few, else medians. */
function rankSeries(runs, quantity) {
  const isOne = runs.length === 1;
  return runs.flatMap((run) => {
    const ranks = run.data.ranks;
    if (!ranks) return [];
    const found = ranks[quantity];
    const slow = run.data.slow;
    const x = ranks.time;
    if (found.lines && isOne) {
      return found.lines.map((line, i) => ({
        name: `rank ${line.rank}`, color: slow?.rank === line.rank ? "slow" : `c${i % NUM_COLORS}`,
        x, y: line.values,
      }));
    }
    if (found.lines) {
      const at = (i, choose) => choose(found.lines.map((line) => line.values[i]).filter(isNumber));
      const each = (choose) => x.map((_, i) => at(i, choose));
      return [{
        name: run.name, color: run.color, x, y: each(median),
        low: each((values) => values.length ? Math.min(...values) : null),
        high: each((values) => values.length ? Math.max(...values) : null),
      }];
    }
    const spread = {
      name: isOne ? `median of ${run.data.num_ranks} ranks` : run.name,
      color: run.color, x, y: found.median, low: found.low, high: found.high,
    };
    const named = isOne && found.slow
      ? [{ name: `rank ${found.slow.rank}`, color: "slow", x, y: found.slow.values }] : [];
    return [spread, ...named];
  }).filter((one) => one.y.some(isNumber));
}

const QUANTITIES = [
  ["throughput", "Throughput", "steps per second", number],
  ["own", "Work per step", "without waiting for other ranks", seconds],
  ["data_wait", "Waiting for data", "per step", seconds],
  ["busy", "Utilisation", "share of time not spent waiting", percent],
  ["cpu", "CPU", "cores in use", number],
  ["memory", "Memory", "resident", bytes],
  ["device_memory", "Device memory", "allocated", bytes],
  ["device_busy", "Device utilisation", "share of time spent computing", percent],
];

function showSteps(runs) {
  const withRanks = runs.filter((run) => run.data.ranks);
  byId("steps-section").hidden = withRanks.length === 0;
  const wanted = [];
  for (const run of withRanks) {
    const { time, parts } = run.data.ranks;
    const series = Object.keys(PARTS)
      .filter((part) => parts[part].some((value) => value > 0))
      .map((part) => ({ name: PARTS[part], color: part, x: time, y: parts[part] }));
    const spec = {
      series, stack: true, format: seconds, formatX: duration, marks: marksOf(run, "time"),
      note: "by phase, averaged over ranks",
    };
    const title = withRanks.length > 1 ? `Step time: ${run.name}` : "Step time";
    wanted.push([`parts ${run.index}`, title, spec, true]);
  }
  for (const [quantity, title, note, format] of QUANTITIES) {
    const series = rankSeries(withRanks, quantity);
    if (!series.length) continue;
    const spec = {
      series, note, format, formatX: duration, fromZero: true,
      marks: withRanks.length === 1 ? marksOf(withRanks[0], "time") : [],
    };
    wanted.push([`rank ${quantity}`, title, spec]);
  }
  layCharts(byId("steps"), wanted);
}

function showNotes(runs) {
  const notes = [];
  if (page.isLost) notes.push("Disconnected: accelerate watch was stopped. Showing the last data received");
  else if (page.runs.length === 0) notes.push("No runs yet. Waiting for the first one");
  for (const run of runs) {
    const { slow, state, silent, metrics, num_left_out } = run.data;
    const name = page.runs.length > 1 ? `${run.name}: ` : "";
    if (slow) {
      const place = slow.host ? ` on ${slow.host}` : "";
      const part = slow.part ? `, mostly in ${PARTS[slow.part] ?? slow.part}` : "";
      notes.push(`${name}Rank ${slow.rank}${place} is slow: ${seconds(slow.own)} per step ` +
        `against ${seconds(slow.median)} on the others${part}`);
    }
    if (state === "silent") notes.push(`${name}No data for ${duration(silent)}: the run crashed or hangs`);
    for (const metric of metrics) {
      if (metric.bad) notes.push(`${name}${metric.name} was ${metric.bad.value} at step ${metric.bad.step}`);
    }
    if (num_left_out) notes.push(`${name}More than 100 metrics: ${num_left_out} values are not shown`);
  }
  byId("notes").replaceChildren(...notes.map((text) => make("p", "note", text)));
}

function showFigures(run) {
  const { data } = run;
  const saved = data.marks.filter((mark) => mark.event === "checkpoint").at(-1);
  const starts = data.marks.filter((mark) => mark.event === "start").length;
  const loss = data.metrics.filter((metric) => metricOrder(metric.name) === 0)[0];
  const rates = data.table.map((row) => row.throughput);
  const rows = [
    [shownRuns().length > 1 ? run.name : "state", data.state, data.state],
    ["step", number(data.step)],
    [loss ? loss.name : "loss", loss ? number(last(loss.mean)) : "–"],
    ["throughput", rates.length ? `${number(median(rates))} /s` : "–"],
    ["time", duration(data.length)],
    ["processes", number(data.num_processes)],
    ["restarts", String(Math.max(starts - 1, 0))],
    ["last checkpoint", saved ? `step ${number(saved.step)}` : "none"],
  ];
  byId("figures").replaceChildren(...rows.map(([name, value, names]) =>
    make("div", "figure", make("span", "", name), make("b", names ?? "", value))));
}

function showRanks(run) {
  const { table, slow } = run.data;
  byId("ranks-section").hidden = table.length === 0;
  const columns = [
    ["rank", (row) => `rank ${row.rank}`], ["host", (row) => row.host || "–"],
    ["steps", (row) => number(row.step)], ["step", (row) => seconds(row.step_time)],
    ["work per step", (row) => seconds(row.own)], ["waiting for data", (row) => seconds(row.data_wait)],
    ["utilisation", (row) => percent(row.busy)], ["cores", (row) => number(row.cpu)],
    ["memory", (row) => bytes(row.memory)], ["device", (row) => bytes(row.device_memory)],
    ["device busy", (row) => percent(row.device_busy)],
    ["last update", (row) => `${duration(row.silent)} ago`],
  ];
  const rows = [...table].sort((a, b) => (b.rank === slow?.rank) - (a.rank === slow?.rank) || a.rank - b.rank);
  byId("ranks").replaceChildren(
    make("thead", "", make("tr", "", ...columns.map(([name]) => make("th", "", name)))),
    make("tbody", "", ...rows.map((row) => make("tr", row.rank === slow?.rank ? "slow" : "",
      ...columns.map(([, text]) => make("td", "", text(row)))))));
}

function showSettings(runs) {
  const names = [...new Set(runs.flatMap((run) => run.data.configuration.map(([name]) => name)))];
  byId("settings-section").hidden = names.length === 0;
  const head = make("tr", "", make("th", "", ""), ...runs.map((run) => make("th", "", run.name)));
  const rows = names.map((name) => {
    const values = runs.map((run) => (run.data.configuration.find(([one]) => one === name) ?? ["", "–"])[1]);
    const differs = values.some((value) => value !== values[0]);
    return make("tr", differs ? "differs" : "", make("td", "", name), ...values.map((value) => make("td", "", value)));
  });
  byId("settings").replaceChildren(make("thead", "", head), make("tbody", "", ...rows));
}

async function showLog(run) {
  const { logs } = run.data;
  byId("log-section").hidden = logs.length === 0;
  const choice = byId("log-choice");
  const names = logs.map((log) => `rank ${log.rank} ${log.stream}` + (log.attempt ? `, attempt ${log.attempt}` : ""));
  const chosen = Math.max(choice.selectedIndex, 0);
  if (names.join("\n") !== [...choice.options].map((option) => option.textContent).join("\n")) {
    choice.replaceChildren(...names.map((name) => make("option", "", name)));
    choice.selectedIndex = Math.min(chosen, names.length - 1);
  }
  if (!logs.length) return;
  const text = await ask(`log?run=${run.index}&log=${Math.max(choice.selectedIndex, 0)}`, "text");
  const pre = byId("log");
  if (text === null || text === page.log) return;
  const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  page.log = text;
  pre.textContent = text;
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

function showRuns() {
  byId("runs").replaceChildren(...page.runs.map((run) => {
    const state = run.data?.state ?? "";
    const button = make("button", `run ${run.color}`, make("i"), make("b", "", run.name), make("em", state, state));
    button.type = "button";
    button.title = run.folder;
    button.style.color = "var(--color)";
    button.setAttribute("aria-pressed", String(run.isShown));
    button.addEventListener("click", () => {
      run.isShown = !run.isShown || shownRuns().length === 1;
      page.focus = run.isShown ? run.index : page.runs.findIndex((one) => one.isShown);
      refresh();
    });
    return button;
  }));
}

function show() {
  showRuns();
  const runs = shownRuns();
  const run = focused();
  showNotes(runs);
  if (!run?.data) return;
  document.title = `${run.name} – accelerate watch`;
  const hasMarks = runs.length === 1 && run.data.marks.length > 1;
  byId("marks-key").textContent = hasMarks ? "▲ checkpoint   ┆ restart, resume, end" : "";
  byId("steps-of").textContent = runs.length > 1 ? "medians over ranks" : "";
  showFigures(run);
  showMetrics(runs);
  showSteps(runs);
  showRanks(run);
  showSettings(runs);
}

// --- what is asked -----------------------------------------------------------

async function ask(path, kind) {
  try {
    const answer = await fetch(path, { credentials: "same-origin", cache: "no-store" });
    page.isLost = false;
    return answer.ok ? await answer[kind]() : null;
  } catch {
    page.isLost = true;
    return null;
  }
}

async function refresh() {
  const list = await ask("runs", "json");
  for (const [index, { name, folder }] of (list?.runs ?? []).entries()) {
    if (page.runs[index]) continue;
    // Several folders were given to be compared, up to the number of colours.
    page.runs[index] = { index, name, folder, color: `c${index % NUM_COLORS}`, isShown: index < NUM_COLORS, data: null };
  }
  for (const run of page.runs.filter((one) => one.isShown)) {
    run.data = (await ask(`run?run=${run.index}`, "json")) ?? run.data;
  }
  show();
  if (focused()?.data) await showLog(focused());
}

async function keepFresh() {
  if (!document.hidden) await refresh();
  const states = shownRuns().map((run) => run.data.state);
  const pause = states.includes("reading") ? READING_MS : states.includes("running") ? LIVE_MS : QUIET_MS;
  setTimeout(keepFresh, pause);
}

for (const button of byId("axis").children) {
  button.addEventListener("click", () => {
    page.axis = button.dataset.axis;
    for (const one of byId("axis").children) one.setAttribute("aria-pressed", String(one === button));
    show();
  });
}
byId("log-choice").addEventListener("change", () => { if (focused()?.data) showLog(focused()); });
addEventListener("resize", () => { for (const chart of page.charts.values()) chart.render(); });
keepFresh();
