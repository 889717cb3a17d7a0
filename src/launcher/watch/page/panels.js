// SPDX-License-Identifier: Apache-2.0
// The panels beside the charts: notes, figures, ranks, configuration, log.
import { bytes, duration, exact, isNumber, median, metricOrder, number, percent, seconds, whole } from "./format.js";
import { byId, fill, keyed, make, makeButton, makeName } from "./elements.js";
import { stateText, STATES } from "./run_table.js";

export const PARTS = {
  data: "waiting for data", forward: "forward", backward: "backward",
  communication: "waiting for ranks", optimizer: "optimizer", checkpoint: "checkpoints",
  captured: "captured step", other: "your own code",
};
const MOST_FAILURES = 3;
// Further notes are folded, so that there is room for charts.
const MOST_NOTES = 3;
// The number of letters by which the new end of a log is found in the shown text.
const LOG_OVERLAP = 400;

export function describeExit(exit) {
  const who = exit.rank === null ? "" : `rank ${exit.rank}${exit.host ? ` on ${exit.host}` : ""} `;
  return who + exit.how + (exit.error ? `: ${exit.error}` : "");
}

/** "NaN at step 12": the first value of a metric that is not finite. */
export function describeBad(metric) {
  const [, kind, , step] = metric.bad[0];
  return `${kind} at step ${whole(step)}`;
}

export function showNotes(page, actions) {
  const notes = [];
  const alarm = (text, ...more) => notes.push(make("p", "note alarm", text, ...more));
  const remark = (text) => notes.push(make("p", "note", text));
  if (page.isLost) alarm("Disconnected: accelerate watch was stopped. Showing the last data received");
  const prefix = (run) => page.runs.length > 1 ? `${run.name}: ` : "";
  const failed = page.runs.filter((run) => run.state === "failed");
  for (const run of failed.slice(0, MOST_FAILURES)) {
    alarm(`${prefix(run)}${describeExit(run.summary.exit)} `, makeButton("plain link", "Show its log", () => actions.openLog(run)));
    keyed(`failed ${run.index}`, notes.at(-1));
  }
  if (failed.length > MOST_FAILURES) alarm(`${failed.length - MOST_FAILURES} more runs failed; see the table`);
  if (page.numLeftOut) {
    const more = page.numLeftOut - page.leftOut.length;
    remark(`${page.numLeftOut} runs are not listed because there are more than ${page.runs.length}: ` +
      page.leftOut.join(", ") + (more > 0 ? ` and ${more} more` : "") + ". Pass fewer folders");
  }
  if (page.missing.length) {
    remark(`The address names runs that are not here: ${page.missing.slice(0, 20).join(", ")}` +
      (page.missing.length > 20 ? ` and ${page.missing.length - 20} more` : ""));
  }
  if (page.notDrawn.length) {
    remark(`Not drawn, because the charts already show ${page.shown.length} runs: ${page.notDrawn.slice(0, 20).map((run) => run.name).join(", ")}` +
      (page.notDrawn.length > 20 ? ` and ${page.notDrawn.length - 20} more` : ""));
  }
  for (const run of page.shown) {
    const { slow, metrics, num_left_out, num_damaged } = run.data;
    if (slow) {
      const where = slow.host ? ` on ${slow.host}` : "";
      const part = slow.part ? `, mostly in ${PARTS[slow.part] ?? slow.part}` : "";
      alarm(`${prefix(run)}Rank ${slow.rank}${where} is slow: ${seconds(slow.own)} per step ` +
        `against ${seconds(slow.median)} on the others${part}`);
    }
    if (run.state === "silent") alarm(`${prefix(run)}No data for ${duration(page.now - run.summary.end)}: the run crashed or hangs`);
    for (const metric of metrics) {
      if (!metric.bad.length) continue;
      const total = metric.bad.reduce((sum, [, , count]) => sum + count, 0);
      alarm(`${prefix(run)}${metric.name} was ${describeBad(metric)}` + (total > 1 ? `; ${whole(total)} values are not finite` : ""));
    }
    if (num_damaged) remark(`${prefix(run)}${num_damaged === 1 ? "1 line" : `${whole(num_damaged)} lines`} of metrics.jsonl cannot be read; the values are missing here`);
    if (num_left_out) remark(`${prefix(run)}More than 100 metrics: ${whole(num_left_out)} values are not shown`);
  }
  const hidden = notes.splice(MOST_NOTES);
  if (hidden.length) notes.push(make("details", "", make("summary", "", hidden.length === 1 ? "1 more note" : `${hidden.length} more notes`), ...hidden));
  fill(byId("notes"), ...notes);
}

export function showFigures(page) {
  const { focus: run } = page;
  const { data } = run;
  const saved = data.marks.filter((mark) => mark.event === "checkpoint").at(-1);
  const starts = data.marks.filter((mark) => mark.event === "start").length;
  const loss = data.metrics.filter((metric) => metricOrder(metric.name) === 0)[0];
  const rates = data.table.map((row) => row.throughput);
  const rows = [
    [page.runs.length > 1 ? run.name : "state", run.state === "silent" ? stateText(run, page.now) : STATES[run.state], run.state],
    ["step", whole(data.step)],
    [loss ? loss.name : "loss", loss ? exact(loss.last) : "–", typeof loss?.last === "string" ? "failed" : ""],
    ["throughput", rates.some(isNumber) ? `${number(median(rates))} /s` : "–"],
    ["time", duration(data.end - data.begin)],
    ["processes", whole(data.num_processes)],
    ["restarts", String(Math.max(starts - 1, 0))],
    ["last checkpoint", saved ? `step ${whole(saved.step)}` : "none"],
  ];
  fill(byId("figures"), ...rows.map(([name, value, names]) => {
    const figure = make("b", names ?? "", value);
    figure.title = value;
    return make("div", "figure", make("span", "", name), figure);
  }));
}

/** The first column names a row. */
function fillTable(table, columns, rows, rowNames) {
  const head = make("tr", "", ...columns.map(([name]) => {
    const cell = make("th", "", name);
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map((row) => keyed(columns[0][1](row), make("tr", rowNames(row), ...columns.map(([, text], i) => {
    const cell = make(i === 0 ? "th" : "td", "", text(row));
    if (i === 0) cell.scope = "row";
    return cell;
  }))));
  fill(table, make("thead", "", head), make("tbody", "", ...body));
}

export function showRanks(page) {
  const { table, slow } = page.focus.data;
  byId("ranks-section").hidden = table.length === 0;
  byId("ranks-of").textContent = page.runs.length > 1 ? page.focus.name : "";
  const failed = page.focus.summary.exit?.rank;
  const columns = [
    ["rank", (row) => `rank ${row.rank}`], ["host", (row) => row.host || "–"],
    ["steps", (row) => whole(row.step)], ["step", (row) => seconds(row.step_time)],
    ["work per step", (row) => seconds(row.own)], ["waiting for data", (row) => seconds(row.data_wait)],
    ["utilisation", (row) => percent(row.busy)], ["cores", (row) => number(row.cpu)],
    ["memory", (row) => bytes(row.memory)], ["device", (row) => row.device || "–"],
    ["device memory", (row) => bytes(row.device_memory)], ["device busy", (row) => percent(row.device_busy)],
    // The clock of another machine may be ahead of ours.
    ["last update", (row) => `${duration(Math.max(page.now - row.time, 0))} ago`],
  ];
  const weight = (row) => (row.rank === failed ? 2 : 0) + (row.rank === slow?.rank ? 1 : 0);
  const rows = [...table].sort((a, b) => weight(b) - weight(a) || a.rank - b.rank);
  fillTable(byId("ranks"), columns, rows, (row) => weight(row) ? "alarm" : "");
}

/** Shows the settings of runs side by side: all, or only those that differ. */
export function showSettings(runs, view) {
  const about = (run) => new Map([...run.data.origin,
    ...[...new Set(run.data.table.map((row) => row.device).filter(Boolean))].map((device) => ["device", device])]);
  const groups = [about, (run) => new Map(run.data.configuration)].map((values) => {
    const found = runs.map(values);
    const names = [...new Set(found.flatMap((one) => [...one.keys()]))];
    return names.map((name) => [name, found.map((one) => one.get(name) ?? "–")]);
  });
  const all = groups.flat();
  const isDifferent = ([, values]) => values.some((value) => value !== values[0]);
  const isAll = runs.length < 2 || view.settings === "all";
  const rows = isAll ? all : all.filter(isDifferent);
  byId("settings-section").hidden = all.length === 0;
  byId("settings-rows").hidden = runs.length < 2;
  for (const button of byId("settings-rows").children) button.setAttribute("aria-pressed", String(button.dataset.rows === view.settings));
  const equal = all.length - rows.length;
  byId("settings-of").textContent = runs.length < 2 ? "" :
    `of the ${runs.length} drawn runs` + (equal ? rows.length ? `; ${equal} equal rows are hidden` : "; nothing differs" : "");
  const columns = [["", (row) => row[0]], ...runs.map((run, i) => {
    const name = make("div", `swatch ${run.isShown ? run.color : ""}`, make("i"), makeName(run.name));
    name.title = run.name;
    return [name, (row) => row[1][i]];
  })];
  fillTable(byId("settings"), columns, rows, (row) => isAll && isDifferent(row) ? "differs" : "");
}

/** The index of the log of the rank that failed, else of the first log. */
function usualLog(run) {
  const { logs } = run.data;
  const rank = run.summary.exit?.rank;
  const of = logs.filter((log) => log.rank === rank);
  return logs.indexOf(of.find((log) => log.stream === "stderr") ?? of[0] ?? logs[0]);
}

const logName = (log) => `rank ${log.rank} ${log.stream}` + (log.attempt ? `, attempt ${log.attempt}` : "");

export async function showLog(page, ask) {
  const { focus: run } = page;
  const { logs } = run.data;
  byId("log-section").hidden = logs.length === 0;
  if (!logs.length) return;
  byId("log-of").textContent = page.runs.length > 1 ? run.name : "";
  const choice = byId("log-choice");
  const names = logs.map(logName);
  fill(choice, ...names.map((name) => make("option", "", name)));
  const named = names.indexOf(page.view.log);
  const chosen = named >= 0 ? named : usualLog(run);
  if (choice.selectedIndex !== chosen) choice.selectedIndex = chosen;
  const text = await ask(`log?run=${run.index}&log=${chosen}`);
  if (text !== null && run === page.focus) fillLog(byId("log"), text || "(empty)");
}

/** Replaces the text of a log. Keeps the visible lines in place, unless the end is visible. */
function fillLog(pre, text) {
  const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  const old = pre.firstChild;
  // The server sends only the end of the file, so lines disappear at the beginning.
  const begin = old ? old.data.indexOf(text.slice(0, LOG_OVERLAP)) : -1;
  if (begin >= 0 && text.startsWith(old.data.slice(begin))) {
    old.appendData(text.slice(old.length - begin));
    const height = pre.scrollHeight;
    old.deleteData(0, begin);
    pre.scrollTop -= height - pre.scrollHeight;
  } else {
    pre.textContent = text;
  }
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

export function showWaiting(page) {
  const isEmpty = page.runs.length === 0 && page.isListed;
  byId("waiting").hidden = !isEmpty;
  document.body.classList.toggle("waiting", isEmpty);
  byId("content").hidden = page.runs.length === 0;
  if (!isEmpty) return;
  const folder = page.folders[0] ?? "runs";
  const quoted = JSON.stringify(folder);
  byId("waiting-folder").textContent = page.folders.join(", ");
  byId("waiting-python").textContent =
    `accelerator = Accelerator(log_with="jsonl", project_dir=${quoted})\n` +
    'accelerator.init_trackers("first")\n' +
    'accelerator.log({"loss": loss.item()}, step=step)   # in the loop\n' +
    "accelerator.end_training()";
  byId("waiting-cpp").textContent =
    `accelerator.init_trackers("first", {.log_with = {"jsonl"}, .logging_dir = ${quoted}});\n` +
    'accelerator.log({{"loss", loss}}, step);   // in the loop\n' +
    "accelerator.end_training();";
}
