// SPDX-License-Identifier: Apache-2.0
// The table of runs: how they differ, and which are drawn.
import { bestOf, compareMetrics, duration, exact, isNumber, moment, whole } from "./format.js";
import { byId, fill, keyed, make, makeButton, makeName } from "./elements.js";

export const STATES = {
  failed: "failed", running: "running", silent: "stopped writing",
  interrupted: "interrupted", finished: "finished", empty: "empty", deleted: "deleted",
};
const ORDER = Object.keys(STATES);
export const MOST_SHOWN = 50;
// The maximum numbers of columns that are shown until the user chooses.
const MOST_SETTINGS = 12;
const MOST_METRICS = 8;
// With more rows than this, the table scrolls.
const MOST_ROWS = 6;

/** Sorts failed runs first, then running ones; within a state, the newest first. */
export function compareRuns(a, b) {
  return ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.summary?.begin ?? 0) - (a.summary?.begin ?? 0) ||
    a.name.localeCompare(b.name);
}

export function stateText(run, now) {
  const text = STATES[run.state] ?? run.state;
  return run.state === "silent" ? `${text} ${duration(now - run.summary.end)} ago` : text;
}

const settingOf = (run, name) => run.settings.get(name);
const metricOf = (run, name) => run.metrics.get(name);

/** Columns: {group, key, title, text(run), value(run) for sorting, isUsual}. */
function columnsOf(runs, now) {
  const columns = [];
  const add = (group, key, title, value, text = (run) => exact(value(run)), isUsual = true) =>
    columns.push({ group, key, title, value, text, isUsual });
  add("Run", "name", "Run", (run) => run.name, (run) => run.name);
  add("Run", "state", "State", (run) => ORDER.indexOf(run.state), (run) => stateText(run, now));
  add("Run", "started", "Started", (run) => run.summary.begin, (run) => moment(run.summary.begin));
  add("Run", "duration", "Duration", (run) => run.summary.end - run.summary.begin, (run) => duration(run.summary.end - run.summary.begin));
  add("Run", "step", "Step", (run) => run.summary.step, (run) => whole(run.summary.step));
  const metrics = [...new Set(runs.flatMap((run) => [...run.metrics.keys()]))].sort(compareMetrics);
  for (const [i, name] of metrics.entries()) {
    add("Metrics", `last ${name}`, `${name}, last`, (run) => metricOf(run, name)?.last, undefined, i < MOST_METRICS);
    const best = bestOf(name);
    if (!best) continue;
    const field = best === "lowest" ? "low" : "high";
    add("Metrics", `best ${name}`, `${name}, ${best}`, (run) => metricOf(run, name)?.[field], undefined, i < MOST_METRICS);
  }
  const settings = [...new Set(runs.flatMap((run) => [...run.settings.keys()]))];
  const differing = settings.filter((name) => runs.some((run) => settingOf(run, name) !== settingOf(runs[0], name)));
  const asNumber = (text) => text !== undefined && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  const usual = differing.slice(0, MOST_SETTINGS);
  for (const name of [...differing, ...settings.filter((one) => !differing.includes(one))]) {
    add("Settings", `config ${name}`, name, (run) => asNumber(settingOf(run, name)), undefined, usual.includes(name));
  }
  return columns;
}

/** Lets the user choose columns; returns those that are shown. */
function chooseColumns(all, view, actions) {
  const isChosen = ({ key, isUsual }) => key === "name" || (view.columns ? view.columns.includes(key) : isUsual);
  const chosen = all.filter(isChosen);
  const boxes = all.slice(1).map((column) => {
    const box = make("input");
    box.type = "checkbox";
    box.checked = isChosen(column);
    box.onchange = (event) => actions.columns(
      all.filter((one) => one.key !== "name" && (one === column ? event.target.checked : isChosen(one))).map((one) => one.key));
    return keyed(column.key, make("label", "", box, column.title));
  });
  const groups = Map.groupBy(boxes, (_, i) => all[i + 1].group);
  const menu = byId("columns");
  menu.querySelector("summary").textContent = `Columns: ${chosen.length} of ${all.length}`;
  const usual = makeButton("plain link", "Usual columns", () => actions.columns(null));
  usual.disabled = !view.columns;
  fill(menu.querySelector("div"), usual, ...[...groups].flatMap(([group, labels]) => [keyed(group, make("b", "", group)), ...labels]));
  return chosen;
}

/** Whether a word is in a text. "lr=0.1" is not in "lr=0.15", nor is "lr=1" in "lr=1e-4". */
function isWord(text, word) {
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) {
    if (!/=.*\d$/.test(word) || !/^(\d|\.\d|e[-+]?\d)/.test(text.slice(at + word.length))) return true;
  }
  return false;
}

/** Whether all words of `filter` are in the name, the state or the configuration ("lr=0.1"). */
export function isWanted(run, filter) {
  const text = [run.name, STATES[run.state], ...[...run.settings].map(([name, value]) => `${name}=${value}`)].join("\n").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => isWord(text, word));
}

function compareValues(a, b) {
  const isMissing = (value) => value === null || value === undefined || (typeof value === "string" && !value);
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  if (isNumber(a) && isNumber(b)) return a - b;
  return isNumber(a) ? -1 : isNumber(b) ? 1 : String(a).localeCompare(String(b));
}

function sorted(runs, columns, sort) {
  const [key, direction] = sort.split(/:(?=(?:up|down)$)/);
  const column = columns.find((one) => one.key === key);
  if (!column) return [...runs].sort(compareRuns);
  const { value } = column;
  return [...runs].sort((a, b) => {
    const order = compareValues(value(a), value(b));
    // Missing values come last in both directions.
    const isBoth = compareValues(value(a), 0) !== 0 && value(a) !== undefined && value(b) !== undefined;
    return (direction === "down" && isBoth ? -order : order) || compareRuns(a, b);
  });
}

/** `page` has runs, view and now; `actions`: toggle(runs, isShown), focus(run), sort(text), columns(keys). */
export function showRunTable(page, actions) {
  const { runs, view, now } = page;
  byId("runs-section").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const there = runs.filter((run) => run.summary && isWanted(run, view.filter));
  const all = columnsOf(runs.filter((run) => run.summary), now);
  const columns = chooseColumns(all, view, actions);
  const ordered = sorted(there, all, view.sort);
  const numShown = runs.filter((run) => run.isShown).length;
  byId("runs-count").textContent = `${runs.length} runs, ${numShown} drawn of at most ${MOST_SHOWN}`;
  byId("filter-clear").hidden = !view.filter;
  const isDrawn = runs.every((run) => run.isShown === there.includes(run));
  byId("filter-count").textContent = !view.filter ? "" :
    `${there.length} of ${runs.length} match` + (there.length && !isDrawn ? ". Enter draws them" : "");
  const box = make("input");
  box.type = "checkbox";
  box.checked = there.length > 0 && there.every((run) => run.isShown);
  box.setAttribute("aria-label", "Draw all runs of the table");
  box.title = "Draw all runs of the table";
  box.onchange = (event) => actions.toggle(there, event.target.checked);
  const head = columns.map(({ key, title }) => {
    const [sortKey, direction] = view.sort.split(/:(?=(?:up|down)$)/);
    const isSorted = sortKey === key;
    const button = makeButton("plain", title + (isSorted ? (direction === "down" ? " ↓" : " ↑") : ""),
      () => actions.sort(isSorted && direction === "up" ? `${key}:down` : isSorted ? "" : `${key}:up`));
    button.title = "Sort by this column";
    const cell = make("th", key === "name" ? "name" : "", button);
    cell.scope = "col";
    if (isSorted) cell.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
    return keyed(key, cell);
  });
  const rows = ordered.map((run) => {
    const shown = make("input");
    shown.type = "checkbox";
    shown.checked = run.isShown;
    shown.setAttribute("aria-label", `Draw ${run.name}`);
    shown.title = "Draw this run";
    shown.onchange = (event) => actions.toggle([run], event.target.checked);
    const name = makeButton("plain", makeName(run.name), () => actions.focus(run));
    name.title = `${run.name}\n${run.folder}\nShow its steps, ranks and log`;
    if (run === page.focus) name.setAttribute("aria-current", "true");
    const cells = columns.slice(1).map(({ key, text }) => make("td", key === "state" ? `state ${run.state}` : "", text(run)));
    return keyed(run.index, make("tr", run === page.focus ? "focus" : "",
      make("td", `pick ${run.isShown ? run.color : ""}`, shown), make("th", "name", name), ...cells));
  });
  for (const row of rows) row.querySelector("th").scope = "row";
  byId("runs-scroll").classList.toggle("tall", rows.length > MOST_ROWS);
  fill(byId("runs"), make("thead", "", make("tr", "", make("td", "pick", box), ...head)), make("tbody", "", ...rows));
}
