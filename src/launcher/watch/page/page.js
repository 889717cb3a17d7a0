// SPDX-License-Identifier: Apache-2.0
// Requests runs from the server and lays out the page.
import { readAddress, writeAddress } from "./address.js";
import { Chart, shareRanges } from "./chart.js";
import { bytes, compareMetrics, isNumber, median, number, percent, seconds } from "./format.js";
import { byId, make } from "./elements.js";
import { describeBad, PARTS, showFigures, showLog, showNotes, showRanks, showSettings, showWaiting } from "./panels.js";
import { compareRuns, isWanted, MOST_SHOWN, showRunTable } from "./run_table.js";
import { saveValues } from "./save.js";

const NUM_COLORS = 8;
const NUM_DASHES = 3;
const NUM_SLOTS = NUM_COLORS * NUM_DASHES;
const USUALLY_SHOWN = 8;
const LIVE_MS = 2000;
// The server reads a long file in parts.
const READING_MS = 100;
const QUIET_MS = 10000;
const TABLE_MS = 1000;
// The margin around a zoomed range, so that lines reach its edges.
const MARGIN = 0.05;

const page = {
  runs: [], shown: [], notDrawn: [], missing: [], focus: null, view: readAddress(), charts: new Map(), version: -1,
  // The colours of runs by folder, kept when the page is loaded again.
  slots: new Map(JSON.parse(sessionStorage.getItem("colors") ?? "[]")),
  now: 0, isLost: false, isListed: false, folders: [], leftOut: [], numLeftOut: 0, isBehind: false, nextShow: 0, nextTable: 0,
};

// --- which runs --------------------------------------------------------------

/** The first runs of the table. Runs that are shown stay when others become the first. */
function usualRuns(listed) {
  const kept = listed.filter((run) => run.isShown);
  const others = listed.filter((run) => !run.isShown && run.state !== "deleted").sort(compareRuns);
  return [...kept, ...others].slice(0, USUALLY_SHOWN).sort(compareRuns);
}

/** A run keeps its colour while it is hidden. Runs drawn together have different colours. */
function giveColors(runs) {
  const { slots } = page;
  const drawn = new Set();
  const give = (run, slot) => {
    drawn.add(slot);
    slots.set(run.folder, slot);
    run.slot = slot;
    run.color = `c${slot % NUM_COLORS} d${Math.floor(slot / NUM_COLORS)}`;
  };
  const others = [];
  for (const run of runs) {
    if (slots.has(run.folder) && !drawn.has(slots.get(run.folder))) give(run, slots.get(run.folder));
    else others.push(run);
  }
  for (const run of others) {
    const kept = new Set(slots.values());
    const colors = new Set([...drawn].map((slot) => slot % NUM_COLORS));
    const free = [...Array(NUM_SLOTS).keys()].filter((slot) => !drawn.has(slot));
    const isOther = (slot) => !colors.has(slot % NUM_COLORS);
    give(run, free.find((slot) => isOther(slot) && !kept.has(slot)) ?? free.find(isOther) ??
      free.find((slot) => !kept.has(slot)) ?? free[0] ?? drawn.size % NUM_SLOTS);
  }
  if (others.length) sessionStorage.setItem("colors", JSON.stringify([...slots]));
}

/**
 * The runs that a name in an address means. The address may be older than another run of that
 * name, or come from a page of other folders, so the name may be another end of the run's path.
 */
function findNamed(name) {
  const listed = page.runs.filter((run) => run.summary);
  const found = listed.filter((run) => run.name === name);
  return found.length || !name ? found : listed.filter((run) => run.folder.endsWith(`/${name}`));
}

function choose() {
  const { view } = page;
  const listed = page.runs.filter((run) => run.summary);
  const named = (view.shown ?? []).map((name) => [name, findNamed(name)]);
  const wanted = view.shown ? [...new Set(named.flatMap(([, runs]) => runs))] : usualRuns(listed);
  page.missing = named.filter(([name, runs]) => name && !runs.length).map(([name]) => name);
  page.notDrawn = wanted.splice(MOST_SHOWN);
  for (const run of page.runs) run.isShown = wanted.includes(run);
  giveColors(wanted);
  page.shown = wanted.filter((run) => run.data);
  const [chosen] = findNamed(view.focus);
  const kept = page.focus?.isShown ? page.focus : null;
  page.focus = chosen ?? kept ?? wanted[0] ?? [...listed].sort(compareRuns)[0] ?? null;
}


const actions = {
  toggle(runs, isShown) {
    const names = new Set(runs.map((run) => run.name));
    const wanted = [...page.shown, ...page.notDrawn, ...page.runs.filter((run) => run.isShown)].map((run) => run.name);
    const others = [...new Set([...wanted, ...page.missing])].filter((name) => !names.has(name));
    page.view.shown = isShown ? [...others, ...names] : others;
    changed();
  },
  focus(run) {
    page.view.focus = run.name;
    page.view.log = "";
    changed();
  },
  sort(text) {
    page.view.sort = text;
    changed();
  },
  columns(keys) {
    page.view.columns = keys;
    changed();
  },
  zoom(axis, from, to) {
    page.view.zoom = { axis, from, to };
    changed();
  },
  reset() {
    page.view.zoom = null;
    changed();
  },
  scale(title, isLog) {
    if (isLog) page.view.logScales.add(title);
    else page.view.logScales.delete(title);
    changed();
  },
  full(title, isFull) {
    if (isFull) page.view.fullRanges.add(title);
    else page.view.fullRanges.delete(title);
    changed();
  },
  point(source, x) {
    for (const chart of page.charts.values()) {
      if (chart.spec.axis === source.spec.axis) chart.showCross(x);
    }
  },
  openLog(run) {
    actions.focus(run);
    page.scrollsToLog = true;
  },
};

/** Call it when the user has changed the view. */
function changed() {
  writeAddress(page.view);
  show();
  refresh();
}

// --- charts ------------------------------------------------------------------

/** Puts the wanted charts into `parent`. Creates missing ones and removes all others. */
function layCharts(parent, wanted) {
  const keys = new Set(wanted.map(([key]) => key));
  for (const [key, chart] of page.charts) {
    if (chart.parent === parent && !keys.has(key)) {
      chart.root.remove();
      page.charts.delete(key);
    }
  }
  let before = null;
  for (const [key, title, spec, isWide] of wanted) {
    let chart = page.charts.get(key);
    if (!chart) {
      chart = new Chart(title, isWide, actions);
      page.charts.set(key, chart);
    }
    chart.parent = parent;
    const expected = before ? before.nextSibling : parent.firstChild;
    if (chart.root !== expected) parent.insertBefore(chart.root, expected);
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

const zoomOf = (axis) => page.view.zoom?.axis === axis ? [page.view.zoom.from, page.view.zoom.to] : null;

/** The points of a metric: those of the zoomed range if they are loaded, else all. */
function seriesOf(run, name) {
  const { axis } = page.view;
  const all = run.data.metrics.find((one) => one.name === name);
  if (!all) return null;
  const detail = zoomOf(axis) && detailOf(run)?.metrics;
  const metric = detail ? detail.find((one) => one.name === name) : all;
  const bad = {};
  for (const [i, kind, count] of metric?.bad ?? []) (bad[i] ??= []).push([kind, count]);
  return {
    name: run.name, color: run.color, last: all.last, bad,
    x: metric?.[axis] ?? [], xLast: metric?.[`last_${axis}`], y: metric?.mean ?? [],
    low: metric?.low, high: metric?.high, count: metric?.count,
  };
}

function metricChart(name, runs) {
  const { axis, smooth, logScales, fullRanges } = page.view;
  const series = runs.map((run) => seriesOf(run, name)).filter(Boolean);
  // The legend shows the latest value, the tooltip the value at the pointer.
  if (series.length === 1 && page.runs.length === 1) Object.assign(series[0], { name: "latest", tipName: name });
  const bad = runs.map((run) => [run, run.data.metrics.find((one) => one.name === name)]).find(([, metric]) => metric?.bad.length);
  return [`metric ${name}`, name, {
    series, axis, smooth, format: number, scalable: true, isLog: logScales.has(name), isFull: fullRanges.has(name),
    quantity: quantityOf(name), zoom: zoomOf(axis),
    bad: bad && (page.runs.length > 1 ? `${bad[0].name}: ` : "") + describeBad(bad[1]),
    marks: runs.length === 1 ? marksOf(runs[0], axis) : [],
  }];
}

/** What a metric measures: "loss" for "train/loss" and for "eval_loss". */
const quantityOf = (name) => name.slice(name.lastIndexOf("/") + 1).replace(/^(train|training|eval|val|valid|validation|test)_/, "");

const groupOf = (name) => name.includes("/") ? name.slice(0, name.indexOf("/")) : "";

function isFound(name) {
  const words = page.view.search.toLowerCase().split(/\s+/);
  return words.every((word) => name.toLowerCase().includes(word));
}

function showMetrics(runs) {
  const all = [...new Set(runs.flatMap((run) => run.data.metrics.map((metric) => metric.name)))];
  const names = all.filter(isFound);
  byId("metrics-count").textContent = page.view.search ? `${names.length} of ${all.length} match` : "";
  names.sort(compareMetrics);
  const groups = new Map();
  for (const name of names) {
    const group = groupOf(name);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(name);
  }
  // Metrics without a prefix come first, without a heading.
  byId("metrics-none").hidden = runs.length > 0 || page.runs.some((run) => run.isShown);
  const ordered = [...groups].sort(([a], [b]) => (a !== "") - (b !== "") || a.localeCompare(b));
  const sections = byId("metrics");
  for (const one of [...sections.children]) {
    if (!groups.has(one.dataset.group)) {
      layCharts(one.querySelector(".charts"), []);
      one.remove();
    }
  }
  for (const [i, [group, members]] of ordered.entries()) {
    let section = [...sections.children].find((one) => one.dataset.group === group);
    if (!section) {
      section = make("details", group ? "" : "plain", make("summary"), make("div", "charts"));
      section.dataset.group = group;
      section.open = !page.view.closed.has(group);
      section.addEventListener("toggle", () => {
        if (section.open === !page.view.closed.has(group)) return;
        if (section.open) page.view.closed.delete(group);
        else page.view.closed.add(group);
        writeAddress(page.view);
        show();
      });
    }
    // Move only if needed: moved elements lose the keyboard focus and the pointer.
    if (sections.children[i] !== section) sections.insertBefore(section, sections.children[i] ?? null);
    section.querySelector("summary").textContent = `${group} (${members.length})`;
    layCharts(section.querySelector(".charts"), section.open ? members.map((name) => metricChart(name, runs)) : []);
  }
}

/** The cells of the ranks' grid as points. */
function cellsOf(ranks) {
  return { x: ranks.time.map((time) => time - ranks.width / 2), xLast: ranks.time.map((time) => time + ranks.width / 2) };
}

/** The ranks' steps: those of the zoomed range if they are loaded, else all. */
const ranksOf = (run) => (zoomOf("time") && detailOf(run)?.ranks) || run.data.ranks;

const lastOf = (values) => values.findLast(isNumber) ?? null;

/** The lines of one quantity: one per rank if a single run has few ranks, else medians. */
function rankSeries(runs, quantity) {
  const isOne = runs.length === 1;
  return runs.flatMap((run) => {
    const { slow, num_ranks } = run.data;
    const ranks = ranksOf(run);
    const found = ranks[quantity];
    const cells = cellsOf(ranks);
    if (found.lines && isOne) {
      return found.lines.map((line, i) => ({
        name: `rank ${line.rank}`, color: slow?.rank === line.rank ? "slow" : `c${i % NUM_COLORS}`, ...cells, y: line.values,
      }));
    }
    if (found.lines) {
      const at = (i, choose) => choose(found.lines.map((line) => line.values[i]).filter(isNumber));
      const each = (choose) => ranks.time.map((_, i) => at(i, choose));
      return [{
        name: run.name, color: run.color, ...cells, y: each(median),
        low: each((values) => values.length ? Math.min(...values) : null),
        high: each((values) => values.length ? Math.max(...values) : null),
      }];
    }
    const spread = {
      name: isOne ? `median of ${num_ranks} ranks` : run.name,
      color: run.color, ...cells, y: found.median, low: found.low, high: found.high,
    };
    const named = isOne && found.slow ? [{ name: `rank ${found.slow.rank}`, color: "slow", ...cells, y: found.slow.values }] : [];
    return [spread, ...named];
  }).filter((one) => one.y.some(isNumber)).map((one) => ({ ...one, last: lastOf(one.y) }));
}

const QUANTITIES = [
  ["throughput", "Throughput", "steps per second", number],
  ["own", "Work per step", "without waiting for other ranks", seconds, { quantity: "seconds per step" }],
  ["data_wait", "Waiting for data", "per step", seconds, { quantity: "seconds per step" }],
  ["busy", "Utilisation", "share of time not spent waiting", percent, { most: 1 }],
  ["cpu", "CPU", "cores in use", number],
  ["memory", "Memory", "resident", bytes],
  ["device_memory", "Device memory", "allocated", bytes],
  ["device_busy", "Device utilisation", "share of time spent computing", percent, { most: 1 }],
];

function showSteps(runs) {
  const withRanks = runs.filter((run) => run.data.ranks);
  const { focus } = page;
  const wanted = [];
  const zoom = zoomOf("time");
  if (focus.data?.ranks) {
    const ranks = ranksOf(focus);
    const { parts, width } = ranks;
    const series = Object.keys(PARTS)
      .filter((part) => parts[part].some((value) => value > 0))
      .map((part) => ({ name: PARTS[part], color: part, ...cellsOf(ranks), y: parts[part], last: lastOf(parts[part]) }));
    const title = page.runs.length > 1 ? `Step time: ${focus.name}` : "Step time";
    if (series.length) wanted.push([`parts ${focus.index}`, title, {
      series, stack: true, axis: "time", zoom, format: seconds, tipFormat: seconds, marks: marksOf(focus, "time"), isFull: page.view.fullRanges.has(title),
      note: `by phase; averaged over ranks and ${seconds(width)}`,
    }, true]);
  }
  byId("steps-of").textContent = withRanks.length > 1 ? "medians over ranks" : "";
  for (const [quantity, title, note, format, more] of QUANTITIES) {
    const series = rankSeries(withRanks, quantity);
    if (!series.length) continue;
    wanted.push([`rank ${quantity}`, title, {
      series, note, format, tipFormat: format, axis: "time", zoom, fromZero: true, isFull: page.view.fullRanges.has(title), ...more,
      marks: withRanks.length === 1 ? marksOf(withRanks[0], "time") : [],
    }]);
  }
  byId("steps-section").hidden = wanted.length === 0;
  layCharts(byId("steps"), wanted);
}

// --- the page ----------------------------------------------------------------

function showControls() {
  const { view } = page;
  for (const button of byId("axis").children) button.setAttribute("aria-pressed", String(button.dataset.axis === view.axis));
  byId("reset").hidden = !view.zoom;
  for (const [id, value] of [["smooth", view.smooth], ["search", view.search], ["filter", view.filter]]) {
    if (document.activeElement !== byId(id)) byId(id).value = value;
  }
  byId("smooth-value").textContent = view.smooth;
  document.body.classList.toggle("lost", page.isLost);
}

function show() {
  choose();
  showControls();
  showWaiting(page);
  showNotes(page, actions);
  if (!page.runs.length) return;
  showRunTable(page, actions);
  const run = page.focus;
  document.title = run ? `${run.name} – accelerate watch` : "accelerate watch";
  const hasMarks = page.shown.length === 1 && page.shown[0].data.marks.length > 1;
  byId("marks-key").textContent = hasMarks ? "▲ checkpoint   ┆ restart, resume, end" : "";
  showMetrics(page.shown);
  if (!run?.data) return;
  showFigures(page);
  showSteps(page.shown);
  showRanks(page);
  shareRanges(page.charts.values());
  showSettings(page.shown.length ? page.shown : [run], page.view);
}

/** Redraws the page with the next frame, at most once per frame. */
function showSoon() {
  page.drawing ??= requestAnimationFrame(() => { page.drawing = null; show(); });
}

async function request(path) {
  try {
    const answer = await fetch(path, { credentials: "same-origin", cache: "no-store" });
    page.isLost = false;
    return answer;
  } catch {
    page.isLost = true;
    page.nextShow = 0;
    return null;
  }
}

async function ask(path, kind = "json") {
  const answer = await request(path);
  return answer?.ok ? answer[kind]().catch(() => null) : null;
}

function takeList(list) {
  Object.assign(page, {
    version: list.version, now: list.now, folders: list.folders, isListed: true,
    leftOut: list.left_out, numLeftOut: list.num_left_out, isBehind: list.is_behind,
  });
  for (const [index, { name, folder, summary }] of list.runs.entries()) {
    const run = page.runs[index] ??= { index, state: "empty", data: null, detail: null, slot: null, isShown: false };
    run.name = name;
    if (!summary) continue;
    Object.assign(run, { folder, summary, state: summary.state, isStale: true });
    run.settings = new Map(summary.configuration);
    run.metrics = new Map(summary.metrics.map((metric) => [metric.name, metric]));
  }
}

/** The loaded details of the zoomed range; null if there are none. */
const detailOf = (run) => run.detail?.zoom === JSON.stringify(page.view.zoom) ? run.detail : null;

/** Whether the zoomed range must be read from the files again. */
const needsDetail = (run) => page.view.zoom !== null && detailOf(run)?.version !== run.data.version;

async function fetchDetail(run) {
  if (!needsDetail(run)) return;
  const { zoom } = page.view;
  const { version } = run.data;
  const margin = MARGIN * (zoom.to - zoom.from);
  const found = await ask(`range?run=${run.index}&axis=${zoom.axis}&from=${zoom.from - margin}&to=${zoom.to + margin}`);
  if (found) run.detail = { zoom: JSON.stringify(zoom), version, ...found };
}

/** Fetches a run if needed. Returns whether there is something new to show. */
async function fetchRun(run) {
  const isWanted = run.isStale || !run.data || run.data.is_behind || needsDetail(run);
  if (!isWanted) return false;
  run.isStale = false;
  const since = run.data ? `&since=${run.data.version}` : "";
  const found = await ask(`run?run=${run.index}${since}`);
  if (!found) return false;
  run.state = found.state;
  if (found.metrics) run.data = found;
  await fetchDetail(run);
  showSoon();
  return true;
}

async function refresh() {
  if (page.isBusy) { page.isAgain = true; return; }
  page.isBusy = true;
  do {
    page.isAgain = false;
    const list = await ask(`runs?since=${page.version}`);
    if (list) takeList(list);
    choose();
    const wanted = page.runs.filter((run) => run.isShown || run === page.focus);
    wanted.sort((a, b) => (b === page.focus) - (a === page.focus) || a.slot - b.slot);
    let isNew = false;
    for (const run of wanted) {
      isNew = await fetchRun(run) || isNew;
      if (page.isAgain) break;
    }
    // While the server reads long files, most lists change only the table.
    if (isNew || !page.runs.length || performance.now() > page.nextShow) {
      page.nextShow = performance.now() + QUIET_MS;
      show();
    } else if (performance.now() > page.nextTable) {
      page.nextTable = performance.now() + TABLE_MS;
      showNotes(page, actions);
      showRunTable(page, actions);
    }
    if (page.focus?.data) await showLog(page, (path) => ask(path, "text"));
    if (page.scrollsToLog && page.focus?.data) {
      page.scrollsToLog = false;
      byId("log-section").scrollIntoView();
      byId("log").focus();
    }
  } while (page.isAgain);
  page.isBusy = false;
}

async function keepFresh() {
  if (!document.hidden) await refresh();
  const states = page.runs.map((run) => run.state);
  const isReading = page.isBehind || page.shown.some((run) => run.data.is_behind);
  const isLive = states.includes("running") || page.runs.length === 0 || page.isLost;
  setTimeout(keepFresh, isReading ? READING_MS : isLive ? LIVE_MS : QUIET_MS);
}

for (const button of byId("axis").children) {
  button.addEventListener("click", () => {
    page.view.axis = button.dataset.axis;
    changed();
  });
}
for (const button of byId("settings-rows").children) {
  button.addEventListener("click", () => {
    page.view.settings = button.dataset.rows;
    changed();
  });
}
for (const id of ["search", "filter"]) {
  byId(id).addEventListener("input", (event) => {
    page.view[id] = event.target.value;
    writeAddress(page.view);
    show();
  });
}
byId("filter").addEventListener("keydown", (event) => {
  // Enter draws the runs that match.
  if (event.key !== "Enter") return;
  page.view.shown = page.runs.filter((run) => run.summary && isWanted(run, page.view.filter)).map((run) => run.name);
  changed();
});
// Close the menu as other menus close: on a press outside of it, or on Escape.
addEventListener("pointerdown", (event) => { if (!byId("columns").contains(event.target)) byId("columns").open = false; });
byId("columns").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  byId("columns").open = false;
  byId("columns").querySelector("summary").focus();
});
byId("filter-clear").addEventListener("click", () => {
  page.view.filter = byId("filter").value = "";
  byId("filter").focus();
  changed();
});
byId("smooth").addEventListener("input", (event) => {
  page.view.smooth = Number(event.target.value);
  writeAddress(page.view);
  show();
});
byId("reset").addEventListener("click", actions.reset);
byId("csv").addEventListener("click", () => saveValues(page.shown, request));
byId("log-choice").addEventListener("change", (event) => {
  page.view.log = event.target.selectedOptions[0].textContent;
  changed();
});
addEventListener("hashchange", () => { page.view = readAddress(); changed(); });
addEventListener("resize", () => { for (const chart of page.charts.values()) chart.render(); });
keepFresh();
