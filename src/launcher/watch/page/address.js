// SPDX-License-Identifier: Apache-2.0
// The view, stored after the # of the address, so that reloading and bookmarks restore it. Runs
// are named by their folders and looked up in the list. The token is in a cookie, never here.

const ROWS = [
  ["axis", "step"], ["smooth", 0], ["search", ""], ["filter", ""], ["sort", ""], ["focus", ""], ["log", ""], ["settings", ""],
];

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const view = { shown: given.has("show") ? given.getAll("show") : null };
  view.columns = given.has("column") ? given.getAll("column") : null;
  for (const [name, usual] of ROWS) view[name] = given.get(name) ?? usual;
  view.axis = view.axis === "time" ? "time" : "step";
  view.smooth = Math.min(Math.max(Number(view.smooth) || 0, 0), 0.99);
  const zoom = /^(step|time):([-\d.e+]+),([-\d.e+]+)$/.exec(given.get("zoom") ?? "");
  const [from, to] = zoom ? [Number(zoom[2]), Number(zoom[3])] : [NaN, NaN];
  view.zoom = from < to ? { axis: zoom[1], from, to } : null;
  view.logScales = new Set(given.getAll("logarithmic"));
  view.fullRanges = new Set(given.getAll("full"));
  view.closed = new Set(given.getAll("closed"));
  return view;
}

export function writeAddress(view) {
  const given = new URLSearchParams();
  for (const name of view.shown ?? []) given.append("show", name);
  // Showing no run is also a choice.
  if (view.shown && !view.shown.length) given.append("show", "");
  for (const name of view.columns?.length === 0 ? [""] : view.columns ?? []) given.append("column", name);
  for (const [name, usual] of ROWS) if (view[name] !== usual) given.set(name, view[name]);
  if (view.zoom) given.set("zoom", `${view.zoom.axis}:${+view.zoom.from.toPrecision(8)},${+view.zoom.to.toPrecision(8)}`);
  for (const name of view.logScales) given.append("logarithmic", name);
  for (const name of view.fullRanges) given.append("full", name);
  for (const name of view.closed) given.append("closed", name);
  const text = given.toString();
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname);
}
