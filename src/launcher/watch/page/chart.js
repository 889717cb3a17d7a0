// SPDX-License-Identifier: Apache-2.0
// One card with lines or a stack, its legend and its tooltip.
import { duration, exact, isNumber, bytes, whole } from "./format.js";
import { byId, draw, make, makeButton } from "./elements.js";
import { findBreaks, logTicks, smoothed, stretches, ticks, timeTicks } from "./scales.js";
import { savePicture } from "./save.js";

// How far another series' point may be from the one that the pointer is at, in pixels.
const NEAR = 6;
const LEAST_DRAG = 6;
const MOST_DOTS = 60;
const MOST_KEYS = 8;

/**
 * `update` takes
 *   series: [{name, color, x, y}]; each may have
 *     xLast, low, high, count: of points that stand for several values
 *     bad: for a point, [[kind, how many]], as {3: [["NaN", 1]]}
 *     last: what was logged last; tipName: its name in the tooltip, if it is another one
 *   axis: "step" or "time"; zoom: [from, to] or null; smooth: 0 to 0.99
 *   stack: the same series are drawn upon each other
 *   marks: [{x, event}], format, tipFormat, fromZero, bad, scalable, isLog
 * `actions`: zoom(axis, from, to), reset(), point(chart, x or null), scale(title, isLog)
 */
export class Chart {
  constructor(title, isWide, actions) {
    this.actions = actions;
    this.title = make("b", "", title);
    this.note = make("small");
    this.scale = makeButton("", "log", () => this.actions.scale(title, !this.spec.isLog));
    this.scale.title = "Logarithmic scale";
    this.save = makeButton("save", "PNG", () => savePicture(this));
    this.save.title = "Save this chart as a picture";
    this.key = make("div", "key");
    this.plot = make("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.root = make("div", isWide ? "card wide" : "card",
      make("h3", "", this.title, this.note, this.scale, this.save), this.key, this.plot, this.tip);
    this.plot.addEventListener("pointerdown", (event) => this.press(event));
    this.plot.addEventListener("pointermove", (event) => this.move(event));
    this.plot.addEventListener("pointerup", (event) => this.release(event));
    this.plot.addEventListener("pointercancel", () => this.stopDrag());
    this.plot.addEventListener("pointerleave", () => { if (!this.drag) this.unpoint(); });
    this.plot.addEventListener("blur", () => this.unpoint());
    this.plot.addEventListener("dblclick", () => this.actions.reset());
    this.plot.addEventListener("keydown", (event) => this.pressKey(event));
  }

  update(spec) {
    this.spec = spec;
    this.note.textContent = spec.bad ?? spec.note ?? "";
    this.note.title = this.note.textContent;
    this.note.className = spec.bad ? "bad" : "";
    this.scale.hidden = !spec.scalable;
    for (const one of spec.series) {
      one.middle = one.xLast ? one.x.map((x, i) => (x + one.xLast[i]) / 2) : one.x;
      one.isBreak = spec.stack ? () => false : findBreaks(one);
      one.smooth = spec.smooth && !spec.stack ? smoothed(one.y, spec.smooth) : null;
    }
    const keys = spec.series.slice(0, MOST_KEYS).map((one) => {
      const key = make("span", one.color, make("i"), `${one.name} ${spec.format(one.last)}`);
      key.title = key.textContent;
      return key;
    });
    if (spec.series.length > MOST_KEYS) keys.push(make("span", "", `and ${spec.series.length - MOST_KEYS} more`));
    this.key.replaceChildren(...keys);
    const summary = spec.series.map((one) => `${one.name} ${spec.format(one.last)}`).slice(0, MOST_KEYS).join(", ");
    this.plot.setAttribute("aria-label",
      `${this.title.textContent}, latest values: ${summary}. Arrow keys read values, plus zooms, Escape resets`);
    this.render();
    if (this.anchor !== undefined && !this.tip.hidden) this.showTip(this.anchor);
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
    const { zoom, stack, fromZero, isLog } = this.spec;
    for (const one of layers) {
      for (let i = 0; i < one.x.length; i += 1) {
        const last = one.xLast?.[i] ?? one.x[i];
        if (zoom && (last < zoom[0] || one.x[i] > zoom[1])) continue;
        left = Math.min(left, one.x[i]);
        right = Math.max(right, last);
        for (const value of [stack ? null : one.y[i], one.low?.[i], one.high?.[i]]) {
          if (!isNumber(value) || (isLog && value <= 0)) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (!(left <= right)) return null;
    if (zoom) [left, right] = zoom;
    if (left === right) { left -= 0.5; right += 0.5; }
    // NaN alone has a place on the axis, but no height.
    if (!(low <= high)) [low, high] = isLog ? [1, 10] : [0, 1];
    if (isLog) {
      low = Math.log10(low);
      high = Math.log10(high);
    } else if (stack || fromZero) {
      low = Math.min(low, 0);
      high = Math.max(high, Number.MIN_VALUE);
    }
    const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    return { left, right, low: low === 0 && !isLog ? 0 : low - space, high: high + space };
  }

  render() {
    const { isLog } = this.spec;
    this.scale.setAttribute("aria-pressed", String(Boolean(isLog)));
    const width = this.plot.clientWidth || 400;
    const height = this.plot.clientHeight || 190;
    const layers = this.layers();
    const range = this.range(layers);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.plot.replaceChildren(svg);
    this.svg = svg;
    this.map = null;
    if (!range) {
      svg.append(draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data here"));
      return;
    }
    const box = { left: 58, right: width - 8, top: 8, bottom: height - 22 };
    const toX = (x) => box.left + (x - range.left) / (range.right - range.left) * (box.right - box.left);
    const toY = (y) => {
      const value = isLog ? Math.log10(Math.max(y, Number.MIN_VALUE)) : y;
      return box.bottom - (value - range.low) / (range.high - range.low) * (box.bottom - box.top);
    };
    this.map = { box, range, toX, toY };
    this.drawAxes(svg, box, range, toX, toY);
    // Lines that leave the range end at its edges.
    const inside = draw("svg", {
      x: box.left, y: 0, width: box.right - box.left, height,
      viewBox: `${box.left} 0 ${box.right - box.left} ${height}`,
    });
    svg.append(inside);
    for (const one of layers) this.drawSeries(inside, one);
    this.drawMarks(inside, box, range, toX);
    this.cross = draw("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
    this.selection = draw("rect", { class: "selection", y: box.top, height: box.bottom - box.top, visibility: "hidden" });
    svg.append(this.cross, this.selection);
    this.showCross(this.crossX ?? null);
  }

  drawSeries(svg, one) {
    const { box, range, toX, toY } = this.map;
    const { stack, isLog } = this.spec;
    const at = (values, i) => `${toX(one.middle[i]).toFixed(1)} ${toY(values[i]).toFixed(1)}`;
    const size = one.x.length;
    if (one.low) {
      const isThere = (i) => isNumber(one.low[i]) && isNumber(one.high[i]);
      const path = stretches(size, isThere, one.isBreak).map(([begin, end]) => {
        const there = [...Array(end - begin).keys()].map((i) => i + begin);
        const up = there.map((i) => at(one.high, i));
        const down = there.reverse().map((i) => at(one.low, i));
        return `M${up.join("L")}L${down.join("L")}Z`;
      }).join("");
      svg.append(draw("path", { class: `${stack ? "stack" : "band"} ${one.color}`, d: path }));
    }
    if (stack) return;
    const line = (values, names) => {
      const isThere = (i) => isNumber(values[i]) && !(isLog && values[i] <= 0);
      const alone = [];
      const path = stretches(size, isThere, one.isBreak).map(([begin, end]) => {
        const points = [];
        for (let i = begin; i < end; i += 1) points.push(at(values, i));
        if (points.length === 1) alone.push(begin);
        return `M${points.join("L")}${points.length === 1 ? "h.01" : ""}`;
      }).join("");
      svg.append(draw("path", { class: `${names} ${one.color}`, d: path }));
      return alone;
    };
    const alone = line(one.y, one.smooth ? "line raw" : "line");
    if (one.smooth) line(one.smooth, "line");
    const isSeen = (i) => one.middle[i] >= range.left && one.middle[i] <= range.right;
    const seen = one.y.map((_, i) => i).filter((i) => isSeen(i) && isNumber(one.y[i]) && !(isLog && one.y[i] <= 0));
    const dots = seen.length <= MOST_DOTS && !one.low ? seen : alone;
    for (const i of dots) {
      svg.append(draw("circle", { class: `dot ${one.color}`, cx: toX(one.middle[i]).toFixed(1), cy: toY(one.y[i]).toFixed(1), r: 2 }));
    }
    for (const [begin, end] of stretches(size, (i) => one.bad?.[i])) {
      const [x, last] = [toX(one.x[begin]), toX((one.xLast ?? one.x)[end - 1])];
      svg.append(draw("path", {
        class: "not-finite",
        d: `M${(x - 4).toFixed(1)} ${box.bottom - 12}l8 8m0-8l-8 8` +
          (last - x > 8 ? `M${x.toFixed(1)} ${box.bottom - 8}H${last.toFixed(1)}` : ""),
      }, draw("title", {}, `${one.name}: ${one.bad[begin][0][0]}`)));
    }
  }

  drawAxes(svg, box, range, toX, toY) {
    const { isLog, format, axis } = this.spec;
    const lines = isLog ? logTicks(range.low, range.high)
      : ticks(range.low, range.high, (box.bottom - box.top) / 32, format === bytes);
    for (const value of lines) {
      const y = toY(value);
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
        draw("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, format(value)));
    }
    const count = (box.right - box.left) / 66;
    const isTime = axis === "time";
    for (const value of isTime ? timeTicks(range.left, range.right, count) : ticks(range.left, range.right, count)) {
      if (!isTime && !Number.isInteger(value)) continue;
      const x = toX(value);
      const anchor = x > box.right - 24 ? "end" : "middle";
      svg.append(draw("text", { x, y: box.bottom + 16, "text-anchor": anchor }, isTime ? duration(value) : whole(value)));
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
      const names = { finish: "mark finish", exit: "mark exit" }[mark.event] ?? "mark";
      const shape = mark.event === "checkpoint"
        ? draw("path", { class: "saved", d: `M${x} ${box.bottom - 8}l4 8h-8z` })
        : draw("line", { class: names, x1: x, x2: x, y1: box.top, y2: box.bottom });
      shape.append(draw("title", {}, mark.event));
      svg.append(shape);
    }
  }

  // --- the pointer -----------------------------------------------------------

  valueAt(event) {
    const { box, range } = this.map;
    const frame = this.plot.getBoundingClientRect();
    const along = (event.clientX - frame.left - box.left) / (box.right - box.left);
    return range.left + Math.min(Math.max(along, 0), 1) * (range.right - range.left);
  }

  press(event) {
    if (!this.map || event.button !== 0) return;
    this.drag = { from: this.valueAt(event), x: event.clientX };
    this.plot.setPointerCapture(event.pointerId);
    this.showTip(this.valueAt(event));
  }

  move(event) {
    if (!this.map) return;
    const value = this.valueAt(event);
    if (this.drag && Math.abs(event.clientX - this.drag.x) >= LEAST_DRAG) {
      const [left, right] = [this.drag.from, value].sort((a, b) => a - b).map(this.map.toX);
      for (const [name, to] of [["x", left], ["width", right - left], ["visibility", "visible"]]) {
        this.selection.setAttribute(name, to);
      }
    }
    this.showTip(value);
  }

  release(event) {
    const { drag } = this;
    this.stopDrag();
    if (!this.map || !drag || Math.abs(event.clientX - drag.x) < LEAST_DRAG) return;
    const [from, to] = [drag.from, this.valueAt(event)].sort((a, b) => a - b);
    this.unpoint();
    this.actions.zoom(this.spec.axis, from, to);
  }

  stopDrag() {
    this.drag = null;
    this.selection?.setAttribute("visibility", "hidden");
  }

  pressKey(event) {
    if (!this.map) return;
    const { left, right } = this.map.range;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const isRight = event.key === "ArrowRight";
      const places = this.spec.series.flatMap((one) => one.middle).filter((x) => x >= left && x <= right).sort((a, b) => a - b);
      const here = this.anchor ?? (isRight ? -Infinity : Infinity);
      const next = isRight ? places.find((x) => x > here) : places.findLast((x) => x < here);
      if (next !== undefined) this.showTip(next);
      byId("spoken").textContent = this.tip.innerText;
    } else if (event.key === "Escape") {
      this.unpoint();
      this.actions.reset();
    } else if (event.key === "+" || event.key === "-") {
      const middle = this.anchor ?? (left + right) / 2;
      const half = (right - left) * (event.key === "+" ? 0.25 : 1);
      this.actions.zoom(this.spec.axis, middle - half, middle + half);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** The index of the point at `x`, and how far away it is; 0 inside of one. */
  nearest(one, x) {
    const { range } = this.map;
    let [best, least] = [-1, Infinity];
    for (let i = 0; i < one.x.length; i += 1) {
      const last = one.xLast?.[i] ?? one.x[i];
      if (last < range.left || one.x[i] > range.right) continue;
      if (!isNumber(one.y[i]) && !one.bad?.[i]) continue;
      const distance = x < one.x[i] ? one.x[i] - x : Math.max(x - last, 0);
      if (distance < least) [best, least] = [i, distance];
    }
    return [best, least];
  }

  /** What was logged at a point, in words. */
  describe(one, i) {
    const format = this.spec.tipFormat ?? exact;
    const count = one.count?.[i] ?? (isNumber(one.y[i]) ? 1 : 0);
    const parts = [];
    if (count > 1) {
      parts.push(`mean of ${whole(count)}: ${format(one.y[i])}, ${format(one.low[i])} to ${format(one.high[i])}`);
    } else if (count === 1) {
      const isSpread = one.low && one.low[i] !== one.high[i];
      parts.push(format(one.y[i]) + (isSpread ? ` (${format(one.low[i])} to ${format(one.high[i])})` : ""));
    }
    for (const [kind, number] of one.bad?.[i] ?? []) parts.push(number > 1 ? `${whole(number)} times ${kind}` : kind);
    if (one.smooth && isNumber(one.smooth[i])) parts.push(`smoothed ${format(one.smooth[i])}`);
    return parts.join(", ");
  }

  describePlace(one, i) {
    const [x, last] = [one.x[i], one.xLast?.[i] ?? one.x[i]];
    if (this.spec.axis === "time") return x === last || duration(x) === duration(last) ? duration(x) : `${duration(x)} to ${duration(last)}`;
    return x === last ? `step ${whole(x)}` : `steps ${whole(x)} to ${whole(last)}`;
  }

  showTip(wanted) {
    if (!this.map) return;
    const found = this.spec.series.map((one) => [one, ...this.nearest(one, wanted)]).filter(([, i]) => i >= 0);
    if (!found.length) { this.unpoint(); return; }
    const [first, index] = found.reduce((a, b) => b[2] < a[2] ? b : a);
    const x = first.middle[index];
    const place = this.describePlace(first, index);
    const { toX } = this.map;
    // A series without a point here, as behind the end of its run, has no value to show.
    const rows = this.spec.series.flatMap((one) => {
      const [i] = one === first ? [index] : this.nearest(one, x);
      if (i < 0) return [];
      const last = one.xLast?.[i] ?? one.x[i];
      const away = Math.max(toX(one.x[i]) - toX(x), toX(x) - toX(last), 0);
      if (away > NEAR) return [];
      const own = this.describePlace(one, i);
      const at = own === place ? "" : ` at ${own}`;
      return [make("div", one.color, make("i"), make("span", "", one.tipName ?? one.name), make("b", "", this.describe(one, i) + at))];
    });
    this.anchor = x;
    this.tip.replaceChildren(make("div", "place", place), ...rows);
    this.tip.hidden = false;
    const at = toX(x);
    const isRight = at > this.plot.clientWidth / 2;
    this.tip.style.top = `${this.plot.offsetTop + 6}px`;
    this.tip.style.left = isRight ? "" : `${this.plot.offsetLeft + at + 12}px`;
    this.tip.style.right = isRight ? `${this.root.clientWidth - this.plot.offsetLeft - at + 12}px` : "";
    this.actions.point(this, x);
  }

  /** The line of a pointer that is on this chart, or on another one with the same axis. */
  showCross(x) {
    this.crossX = x;
    if (!this.map) return;
    const isSeen = x !== null && x >= this.map.range.left && x <= this.map.range.right;
    this.cross.setAttribute("visibility", isSeen ? "visible" : "hidden");
    if (!isSeen) return;
    this.cross.setAttribute("x1", this.map.toX(x));
    this.cross.setAttribute("x2", this.map.toX(x));
  }

  unpoint() {
    this.anchor = undefined;
    this.tip.hidden = true;
    this.actions.point(this, null);
  }
}
