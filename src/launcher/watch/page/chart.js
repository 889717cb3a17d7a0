// SPDX-License-Identifier: Apache-2.0
// A card with lines or a stack, a legend and a tooltip.
import { duration, exact, isNumber, bytes, whole } from "./format.js";
import { byId, draw, fill, LONG_NAME, make, makeButton, makeName } from "./elements.js";
import { farLimits, findBreaks, logTicks, smoothed, stretches, ticks, timeTicks } from "./scales.js";
import { savePicture } from "./save.js";

// The tooltip shows points of other series that are at most this many pixels away.
const NEAR = 6;
const LEAST_DRAG = 6;
const MOST_DOTS = 60;
// The axis leaves out values far away if that makes the others at least this many times higher.
const LEAST_GAIN = 3;
const EDGE_MARK = 8;
const EDGE_ROOM = 4;
// The fraction of a shared axis that each chart must fill.
const LEAST_FILLED = 0.4;
const MOST_KEYS = 8;
const MOST_ROWS = 12;
// Pixels between the pointer and the tooltip (a finger hides more), and to the edge of the window.
const GAP = { mouse: 14, touch: 32 };
const EDGE = 6;

// Browsers draw lines wrongly if they extend further outside than this.
const MOST_PIXELS = 1e5;

const points = (number) => number === 1 ? "1 point" : `${whole(number)} points`;

/**
 * `update` takes
 *   series: [{name, color, x, y}]; each may have
 *     xLast, low, high, count: for points that stand for several values
 *     bad: [[kind, count]] by point, e.g. {3: [["NaN", 1]]}
 *     last: the latest value; tipName: the name in the tooltip, if it is a different one
 *   axis: "step" or "time"; zoom: [from, to] or null; smooth: 0 to 0.99
 *   stack: whether series are drawn on top of each other
 *   marks: [{x, event}], format, tipFormat, fromZero, bad, scalable, isLog, isFull,
 *   most: a value that the axis must include; quantity: see `shareRanges`
 * `actions`: zoom(axis, from, to), reset(), point(chart, x or null), scale(title, isLog),
 *   full(title, isFull)
 */
export class Chart {
  constructor(title, isWide, actions) {
    this.actions = actions;
    this.title = make("b", "", title);
    this.note = make("small");
    this.scale = makeButton("", "log", () => this.actions.scale(title, !this.spec.isLog));
    this.scale.title = "Logarithmic scale";
    this.full = makeButton("full", "full range", () => this.actions.full(title, !this.spec.isFull));
    this.full.title = "Show all values. The automatic axis leaves out values that are far from the others";
    this.save = makeButton("save", "PNG", () => savePicture(this));
    this.save.title = "Save this chart as a picture";
    this.key = make("div", "key");
    this.plot = make("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.root = make("div", isWide ? "card wide" : "card",
      make("h3", "", this.title, this.note, this.full, this.scale, this.save), this.key, this.plot, this.tip);
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
      one.smooth = spec.smooth && !spec.stack ? smoothed(one.y, spec.smooth, one.count) : null;
    }
    const texts = spec.series.map((one) => `${one.name} ${spec.format(one.last)}`);
    const keys = spec.series.slice(0, MOST_KEYS).map((one, i) => {
      const key = make("span", one.color, make("i"), makeName(one.name), make("span", "", ` ${spec.format(one.last)}`));
      key.title = texts[i];
      return key;
    });
    if (texts.length > MOST_KEYS) {
      const rest = make("span", "", `and ${texts.length - MOST_KEYS} more`);
      rest.title = texts.slice(MOST_KEYS).join("\n");
      keys.push(rest);
    }
    const hasLong = spec.series.some((one) => one.name.length > LONG_NAME);
    this.key.className = keys.length > 1 && hasLong ? "key many" : "key";
    fill(this.key, ...keys);
    this.plot.setAttribute("aria-label",
      `${this.title.textContent}, latest values: ${texts.slice(0, MOST_KEYS).join(", ")}. Arrow keys read values, plus zooms, Escape resets`);
    this.render();
    if (this.anchor !== undefined && !this.tip.hidden) this.showTip(this.anchor, this.pointer);
  }

  /** The series as they are drawn: in a stack, each begins at the top of the previous one. */
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

  /** The ranges of the axes, before they are shared with other charts. */
  range(layers) {
    const { zoom, stack, isLog, isFull } = this.spec;
    const isFromZero = !isLog && (stack || this.spec.fromZero);
    const scale = isLog ? Math.log10 : (value) => value;
    let [left, right] = [Infinity, -Infinity];
    const values = [];
    const lists = layers.map((one) => {
      const list = [];
      for (let i = 0; i < one.x.length; i += 1) {
        const last = one.xLast?.[i] ?? one.x[i];
        if (zoom && (last < zoom[0] || one.x[i] > zoom[1])) continue;
        left = Math.min(left, one.x[i]);
        right = Math.max(right, last);
        const seen = [stack ? one.high[i] : one.y[i], one.low?.[i], one.high?.[i]]
          .map((value) => isNumber(value) && !(isLog && value <= 0) ? scale(value) : null);
        if (seen[0] !== null) list.push(seen[0]);
        for (const value of seen) if (value !== null) values.push(value);
      }
      return list;
    });
    if (!(left <= right)) return null;
    if (zoom) [left, right] = zoom;
    if (left === right) { left -= 0.5; right += 0.5; }
    const within = (least, most) => {
      let [low, high] = isFromZero ? [0, this.spec.most ?? Number.MIN_VALUE] : [Infinity, -Infinity];
      for (const value of values) {
        if (value < least || value > most) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      return [low, high];
    };
    let [low, high] = within(-Infinity, Infinity);
    // If all values are NaN, there is no range.
    if (!(low <= high)) [low, high] = [0, 1];
    // The top of a stack is its last layer; no layer is far from the others.
    const near = within(...farLimits(stack ? lists.slice(-1) : lists, isFromZero));
    const hasFar = high - low > LEAST_GAIN * (near[1] - near[0]) && near[1] > near[0];
    if (hasFar && !isFull) [low, high] = near;
    const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    return { left, right, low: low === 0 && !isLog ? 0 : low - space, high: high + space, hasFar };
  }

  render() {
    const { isLog, isFull } = this.spec;
    this.scale.setAttribute("aria-pressed", String(Boolean(isLog)));
    this.full.setAttribute("aria-pressed", String(Boolean(isFull)));
    const width = this.plot.clientWidth || 400;
    const height = this.plot.clientHeight || 190;
    const layers = this.layers();
    const range = this.range(layers);
    this.own = range && [range.low, range.high];
    if (range && this.shared) [range.low, range.high] = this.shared;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.plot.replaceChildren(svg);
    this.svg = svg;
    this.map = null;
    this.full.hidden = !range?.hasFar;
    if (!range) {
      svg.append(draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data here"));
      return;
    }
    const box = { left: 58, right: width - 8, top: 8, bottom: height - 22 };
    const toX = (x) => box.left + (x - range.left) / (range.right - range.left) * (box.right - box.left);
    const toY = (y) => {
      const value = isLog ? Math.log10(Math.max(y, Number.MIN_VALUE)) : y;
      const height = (value - range.low) / (range.high - range.low) * (box.bottom - box.top);
      return box.bottom - Math.min(Math.max(height, -MOST_PIXELS), MOST_PIXELS);
    };
    this.map = { box, range, toX, toY };
    this.drawAxes(svg, box, range, toX, toY);
    // Clips lines at the edges of the range, with room for the dots and marks there.
    const [from, across] = [box.left - EDGE_ROOM, box.right - box.left + 2 * EDGE_ROOM];
    const inside = draw("svg", {
      x: from, y: box.top, width: across, height: box.bottom - box.top,
      viewBox: `${from} ${box.top} ${across} ${box.bottom - box.top}`,
    });
    svg.append(inside);
    for (const one of layers) this.drawSeries(inside, one);
    this.drawBeyond(inside, layers);
    this.drawMarks(inside, box, range, toX);
    this.cross = draw("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
    this.selection = draw("rect", { class: "selection", y: box.top, height: box.bottom - box.top, visibility: "hidden" });
    svg.append(this.cross, this.selection);
    this.showCross(this.crossX ?? null);
    this.showSelection();
  }

  /** Sets a shared range of the vertical axis; null restores the chart's own range. */
  share(range) {
    if (String(range) === String(this.shared ?? null)) return;
    this.shared = range;
    this.render();
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

  /** Shows where values are above or below the axis, and how many. */
  drawBeyond(svg, layers) {
    const { box, range, toX, toY } = this.map;
    const { isLog, format, stack } = this.spec;
    const sides = [
      { word: "above", end: "up to", edge: box.top, tip: 6, of: (one) => one.high ?? one.y, is: (y) => y < box.top, far: Math.max },
      { word: "below", end: "down to", edge: box.bottom, tip: -6, of: (one) => one.low ?? one.y, is: (y) => y > box.bottom, far: Math.min },
    ];
    const notes = [];
    for (const { word, end, edge, tip, of, is, far } of sides) {
      let [number, most] = [0, null];
      for (const one of stack ? layers.slice(-1) : layers) {
        let before = -Infinity;
        for (const [i, value] of of(one).entries()) {
          const x = toX(one.middle[i]);
          if (!isNumber(value) || (isLog && value <= 0) || !is(toY(value)) || x < box.left || x > box.right) continue;
          number += 1;
          most = far(most ?? value, value);
          if (x < before + EDGE_MARK) continue;
          before = x;
          svg.append(draw("path", { class: `beyond ${one.color}`, d: `M${x.toFixed(1)} ${edge}l5 ${tip}h-10z` }));
        }
      }
      if (number) notes.push([edge + (tip > 0 ? 18 : -9), `${points(number)} ${word}, ${end} ${format(most)}`]);
    }
    const seen = (one, i) => one.middle[i] >= range.left && one.middle[i] <= range.right;
    const lost = isLog ? layers.reduce((sum, one) => sum + one.y.filter((y, i) => isNumber(y) && y <= 0 && seen(one, i)).length, 0) : 0;
    if (lost) notes.push([box.bottom - 22, `${points(lost)} at 0 or below not drawn`]);
    for (const [y, text] of notes) svg.append(draw("text", { class: "beyond-note", x: box.right - 4, y, "text-anchor": "end" }, text));
  }

  drawAxes(svg, box, range, toX, toY) {
    const { isLog, format, axis } = this.spec;
    const height = box.bottom - box.top;
    const lines = isLog ? logTicks(range.low, range.high, height / 18)
      : ticks(range.low, range.high, height / 32, format === bytes);
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
    this.showTip(this.valueAt(event), event);
  }

  move(event) {
    if (!this.map) return;
    const value = this.valueAt(event);
    if (this.drag && Math.abs(event.clientX - this.drag.x) >= LEAST_DRAG) {
      this.drag.to = value;
      this.showSelection();
    }
    this.showTip(value, event);
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
    this.showSelection();
  }

  showSelection() {
    this.selection?.setAttribute("visibility", this.drag?.to === undefined ? "hidden" : "visible");
    if (this.drag?.to === undefined) return;
    const [left, right] = [this.drag.from, this.drag.to].sort((a, b) => a - b).map(this.map.toX);
    this.selection.setAttribute("x", left);
    this.selection.setAttribute("width", right - left);
  }

  pressKey(event) {
    if (!this.map) return;
    const { left, right } = this.map.range;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const isRight = event.key === "ArrowRight";
      const positions = this.spec.series.flatMap((one) => one.middle).filter((x) => x >= left && x <= right).sort((a, b) => a - b);
      const here = this.anchor ?? (isRight ? -Infinity : Infinity);
      const next = isRight ? positions.find((x) => x > here) : positions.findLast((x) => x < here);
      if (next !== undefined) this.showTip(next);
      byId("spoken").textContent = this.tip.innerText;
    } else if (event.key === "Escape") {
      this.unpoint();
      this.actions.reset();
    } else if (event.key === "+" || event.key === "-") {
      const middle = this.anchor ?? (left + right) / 2;
      const half = (right - left) * (event.key === "+" ? 0.25 : 1);
      // Zooming in near an edge stays inside of the range.
      const center = event.key === "+" ? Math.min(Math.max(middle, left + half), right - half) : middle;
      this.actions.zoom(this.spec.axis, center - half, center + half);
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

  /** The values of a point as text. */
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

  describePosition(one, i) {
    const [x, last] = [one.x[i], one.xLast?.[i] ?? one.x[i]];
    if (this.spec.axis === "time") return x === last || duration(x) === duration(last) ? duration(x) : `${duration(x)} to ${duration(last)}`;
    return x === last ? `step ${whole(x)}` : `steps ${whole(x)} to ${whole(last)}`;
  }

  /** Shows the tooltip of the points near `wanted`; `pointer` is the pointer's event, if any. */
  showTip(wanted, pointer = null) {
    if (!this.map) return;
    const found = this.spec.series.map((one) => [one, ...this.nearest(one, wanted)]).filter(([, i]) => i >= 0);
    if (!found.length) { this.unpoint(); return; }
    const [first, index] = found.reduce((a, b) => b[2] < a[2] ? b : a);
    const x = first.middle[index];
    const position = this.describePosition(first, index);
    const { toX, toY } = this.map;
    const height = pointer && pointer.clientY - this.plot.getBoundingClientRect().top;
    const distance = (one, i) => Math.min(...[one.y[i], one.smooth?.[i]].map((y) => isNumber(y) ? Math.abs(toY(y) - height) : Infinity));
    // A series without a point here, e.g. after the end of its run, has no row.
    const rows = this.spec.series.flatMap((one) => {
      const [i] = one === first ? [index] : this.nearest(one, x);
      if (i < 0) return [];
      const last = one.xLast?.[i] ?? one.x[i];
      const away = Math.max(toX(one.x[i]) - toX(x), toX(x) - toX(last), 0);
      if (away > NEAR) return [];
      const own = this.describePosition(one, i);
      const at = own === position ? "" : ` at ${own}`;
      const row = make("div", one.color, make("i"), make("span", "", one.tipName ?? one.name), make("b", "", this.describe(one, i) + at));
      return [[row, pointer && !this.spec.stack ? distance(one, i) : 0]];
    }).sort(([, a], [, b]) => a === b ? 0 : a - b).map(([row]) => row);
    const rest = rows.splice(MOST_ROWS).length;
    if (rest) rows.push(make("div", "position", `and ${rest} more`));
    this.anchor = x;
    this.pointer = pointer;
    this.tip.replaceChildren(make("div", "position", position), ...rows);
    this.tip.hidden = false;
    this.moveTip(x, pointer);
    this.actions.point(this, x);
  }

  /** Puts the tooltip beside the pointer if there is room, else above or below it. */
  moveTip(x, pointer) {
    const frame = this.plot.getBoundingClientRect();
    const [atX, atY] = pointer ? [pointer.clientX, pointer.clientY] : [frame.left + this.map.toX(x), frame.top + frame.height / 2];
    const gap = GAP[pointer?.pointerType] ?? GAP.mouse;
    const { style } = this.tip;
    // Measure at the corner: the width depends on the position.
    style.left = style.top = "0px";
    const { width, height } = this.tip.getBoundingClientRect();
    const within = (from, size, whole) => Math.max(Math.min(from, whole - size - EDGE), EDGE);
    const [right, left, above] = [atX + gap, atX - gap - width, atY - gap - height];
    const isRight = right + width + EDGE <= innerWidth;
    const isBeside = isRight || left >= EDGE;
    style.left = `${isBeside ? (isRight ? right : left) : within(atX - width / 2, width, innerWidth)}px`;
    style.top = `${isBeside ? within(atY - height / 2, height, innerHeight) : above >= EDGE ? above : atY + gap}px`;
  }

  /** Draws the line of a pointer on this chart, or on another one with the same axis. */
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

/**
 * Gives charts of the same quantity the same vertical axis, so that they can be compared at a
 * glance. Does so only if each chart still fills enough of the axis.
 */
export function shareRanges(charts) {
  const groups = new Map();
  for (const chart of charts) {
    const { quantity, isLog, isFull } = chart.spec;
    const key = quantity && chart.own ? JSON.stringify([quantity, isLog, isFull]) : chart;
    groups.set(key, [...groups.get(key) ?? [], chart]);
  }
  for (const group of groups.values()) {
    const low = Math.min(...group.map((chart) => chart.own?.[0]));
    const high = Math.max(...group.map((chart) => chart.own?.[1]));
    const isFilled = group.every(({ own }) => own && own[1] - own[0] >= LEAST_FILLED * (high - low));
    for (const chart of group) chart.share(group.length > 1 && isFilled ? [low, high] : null);
  }
}
