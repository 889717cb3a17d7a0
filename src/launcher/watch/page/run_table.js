// SPDX-License-Identifier: Apache-2.0
// The table of runs: which there are, how they differ, and which are drawn.
import { bestOf, compareMetrics, duration, exact, isNumber, moment, number } from "./format.js";
import { byId, make, makeButton } from "./elements.js";

export const STATES = {
  failed: "failed", running: "running", silent: "stopped writing",
  interrupted: "interrupted", finished: "finished", empty: "empty",
};
const ORDER = Object.keys(STATES);
const MOST_SETTINGS = 12;
const MOST_METRICS = 8;

/** Failed runs first, then running ones; of each state, the newest first. */
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

/** Columns: [key, title, text(run), value for sorting(run)]. */
function columnsOf(runs, now) {
  const columns = [
    ["name", "Run", (run) => run.name, (run) => run.name],
    ["state", "State", (run) => stateText(run, now), (run) => ORDER.indexOf(run.state)],
    ["started", "Started", (run) => moment(run.summary.begin), (run) => run.summary.begin],
    ["duration", "Duration", (run) => duration(run.summary.end - run.summary.begin), (run) => run.summary.end - run.summary.begin],
    ["step", "Step", (run) => number(run.summary.step), (run) => run.summary.step],
  ];
  const settings = new Set(runs.flatMap((run) => [...run.settings.keys()]));
  const differing = [...settings].filter((name) => runs.some((run) => settingOf(run, name) !== settingOf(runs[0], name)));
  const asNumber = (text) => text !== undefined && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  for (const name of differing.slice(0, MOST_SETTINGS)) {
    const value = (run) => asNumber(settingOf(run, name));
    columns.push([`config ${name}`, name, (run) => exact(value(run)), value]);
  }
  const metrics = [...new Set(runs.flatMap((run) => [...run.metrics.keys()]))].sort(compareMetrics);
  for (const name of metrics.slice(0, MOST_METRICS)) {
    columns.push([`last ${name}`, `${name}, last`, (run) => exact(metricOf(run, name)?.last), (run) => metricOf(run, name)?.last]);
    const best = bestOf(name);
    if (!best) continue;
    const field = best === "lowest" ? "low" : "high";
    columns.push([`best ${name}`, `${name}, ${best}`, (run) => exact(metricOf(run, name)?.[field]), (run) => metricOf(run, name)?.[field]]);
  }
  const left = [];
  if (differing.length > MOST_SETTINGS) left.push(`${differing.length - MOST_SETTINGS} more settings differ (see Configuration)`);
  if (metrics.length > MOST_METRICS) left.push(`${metrics.length - MOST_METRICS} more metrics (see the charts)`);
  return [columns, left.join("; ")];
}

/** Words that must all be found in the name, the state or the configuration ("lr=0.1"). */
export function isWanted(run, filter) {
  const text = [run.name, STATES[run.state], ...[...run.settings].map(([name, value]) => `${name}=${value}`)].join("\n").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function compareValues(a, b) {
  const isMissing = (value) => value === null || value === undefined || (typeof value === "string" && !value);
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  if (isNumber(a) && isNumber(b)) return a - b;
  return isNumber(a) ? -1 : isNumber(b) ? 1 : String(a).localeCompare(String(b));
}

function sorted(runs, columns, sort) {
  const [key, direction] = sort.split(/:(?=(?:up|down)$)/);
  const column = columns.find(([one]) => one === key);
  if (!column) return [...runs].sort(compareRuns);
  const value = column[3];
  return [...runs].sort((a, b) => {
    const order = compareValues(value(a), value(b));
    // What is missing comes last in both directions.
    const isBoth = compareValues(value(a), 0) !== 0 && value(a) !== undefined && value(b) !== undefined;
    return (direction === "down" && isBoth ? -order : order) || compareRuns(a, b);
  });
}

/** `page` has runs, view and now; `actions`: toggle(runs, isShown), focus(run), sort(text). */
export function showRunTable(page, actions) {
  const { runs, view, now } = page;
  byId("runs-section").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const there = runs.filter((run) => run.summary && isWanted(run, view.filter));
  const [columns, left] = columnsOf(there, now);
  const ordered = sorted(there, columns, view.sort);
  const numShown = runs.filter((run) => run.isShown).length;
  byId("runs-count").textContent = `${runs.length} runs, ${numShown} drawn` +
    (there.length < runs.length ? `, ${there.length} match` : "") + (left ? `. ${left}` : "");
  const box = make("input");
  box.type = "checkbox";
  box.checked = there.length > 0 && there.every((run) => run.isShown);
  box.setAttribute("aria-label", "Draw all runs of the table");
  box.addEventListener("change", () => actions.toggle(there, box.checked));
  const head = columns.map(([key, title]) => {
    const [sortKey, direction] = view.sort.split(/:(?=(?:up|down)$)/);
    const isSorted = sortKey === key;
    const cell = make("th", key === "name" ? "name" : "", makeButton("plain",
      title + (isSorted ? (direction === "down" ? " ↓" : " ↑") : ""),
      () => actions.sort(isSorted && direction === "up" ? `${key}:down` : isSorted ? "" : `${key}:up`)));
    cell.scope = "col";
    if (isSorted) cell.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
    return cell;
  });
  const rows = ordered.map((run) => {
    const shown = make("input");
    shown.type = "checkbox";
    shown.checked = run.isShown;
    shown.setAttribute("aria-label", `Draw ${run.name}`);
    shown.addEventListener("change", () => actions.toggle([run], shown.checked));
    const name = makeButton("plain", run.name, () => actions.focus(run));
    name.title = `${run.folder}\nShow its steps, ranks and log`;
    if (run === page.focus) name.setAttribute("aria-current", "true");
    const cells = columns.slice(1).map(([key, , text]) => make("td", key === "state" ? `state ${run.state}` : "", text(run)));
    return make("tr", run === page.focus ? "focus" : "",
      make("td", `pick ${run.isShown ? run.color : ""}`, shown, make("i")), make("th", "name", name), ...cells);
  });
  for (const row of rows) row.querySelector("th").scope = "row";
  const table = byId("runs");
  // A table that is being used must not lose the focus.
  const focused = table.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent : null;
  table.replaceChildren(make("thead", "", make("tr", "", make("td", "pick", box), ...head)), make("tbody", "", ...rows));
  if (focused !== null) {
    [...table.querySelectorAll("button, input")].find((one) => (one.getAttribute("aria-label") ?? one.textContent) === focused)?.focus();
  }
}
