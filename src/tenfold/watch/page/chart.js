// Line charts as drawings: axes, lines, dots with error bars, a shaded band, levels, and a crosshair that all charts of
// a view share. The crosshair follows the pointer or, where a chart has the focus, the arrow keys, and the values under
// it stand in the legend, whose place never changes.

import { el, isNumber, mark, write } from "./words.js";

const LEFT = 58, RIGHT = 14, TOP = 10, BOTTOM = 24; // pixels around the plot
const FEW = 2; // points that are not enough for a close view
const EARLY = 0.1; // share of the axis whose high values a close view leaves out
const STEPS = [1, 2, 5, 10]; // that ticks may be apart, times a power of ten
const DIGITS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]; // where a logarithmic axis may have ticks
const LOG_TIMES = [1, 10, 60, 600, 3600, 36000, 86400, 864000]; // seconds
const TIMES = [ // seconds that ticks may be apart
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432000, 864000,
];

let made = 0; // charts, so that each has names of its own

/** Where the crosshair of several charts stands, as a value of their common axis; null where it is not shown. */
export function makeCursor() {
  const listeners = new Set();
  const cursor = {
    x: null,
    listen: (listener) => listeners.add(listener),
    move(x) {
      cursor.x = x;
      for (const listener of listeners) listener();
    },
  };
  return cursor;
}

/** At most about `most` of many points, such that every bucket keeps its lowest and highest. */
export function thin(points, most) {
  if (points.length <= most) return points;
  const size = Math.ceil((2 * points.length) / most);
  const kept = [];
  for (let from = 0; from < points.length; from += size) {
    let low = from, high = from;
    for (let i = from; i < Math.min(from + size, points.length); i++) {
      if (points[i][1] < points[low][1]) low = i;
      if (points[i][1] > points[high][1]) high = i;
    }
    kept.push(points[Math.min(low, high)]);
    if (low !== high) kept.push(points[Math.max(low, high)]);
  }
  return kept;
}

/** Index of the point nearest to x in points sorted by it; -1 of none. */
export function nearest(points, x) {
  let low = 0, high = points.length;
  while (low < high) {
    const half = (low + high) >> 1;
    if (points[half][0] < x) low = half + 1;
    else high = half;
  }
  if (low === points.length || (low > 0 && x - points[low - 1][0] < points[low][0] - x)) low--;
  return low;
}

/** From values to pixels; on a logarithmic axis what is 0 or less stands at its lower end. */
function scaling(low, high, from, to, log) {
  const bend = log ? (value) => Math.log(Math.max(value, low)) : (value) => value;
  const [first, last] = [bend(low), bend(high)];
  return (value) => from + ((bend(value) - first) / (last - first || 1)) * (to - from);
}

/** Round values from low to high, about as many as there is room for. */
function ticks(low, high, room, axis) {
  if (axis.marks) return axis.marks;
  if (axis.log && axis.time) return LOG_TIMES.filter((value) => value >= low && value <= high);
  if (axis.log && high / low > 1.5) {
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(10 ** power);
    const all = (digits) => powers.flatMap((power) => digits.map((digit) => +(digit * power).toPrecision(1)));
    const marks = DIGITS.map((digits) => all(digits).filter((value) => value >= low && value <= high));
    const found = marks.find((values) => values.length <= room + 1) ?? marks.at(-1);
    if (found.length > 1) return found; // one tells nothing of a scale
  }
  const raw = (high - low) / Math.max(1, room);
  const power = 10 ** Math.floor(Math.log10(raw));
  const usual = power * STEPS.find((size) => size * power >= raw * 0.999);
  const every = (axis.time && TIMES.find((size) => size >= raw)) || (axis.whole ? Math.max(1, usual) : usual);
  const values = [];
  for (let i = Math.ceil(low / every - 1e-9); i * every <= high + every * 1e-9; i++) {
    values.push(+(i * every).toPrecision(12));
  }
  return values;
}

/** Lowest and highest of the values that are finite, a little apart from each other. */
function extent(values, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) return log ? [low / 2, high * 2] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  return [low, high];
}

/** Shape of a line through points, with gaps where a value is not finite; one between two gaps is a dot. */
function path(points, x, y) {
  let text = "", pen = "M";
  for (const [at, value] of points) {
    if (!isNumber(value)) pen = "M";
    else [text, pen] = [`${text}${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}${pen === "M" ? "h0" : ""}`, "L"];
  }
  return text;
}

/** A chart. `show` draws what is handed to it:
 *
 * x: { form, unit, log, time, whole, high }, y: { form, tick, log, close, marks, low, high }: how values are written,
 *   beside the axis too (`tick`), and what the axis is; `whole` has no ticks between whole numbers, `close` leaves out
 *   what lies above the values after the first tenth;
 * lines: [{ name, color, points: [[x, y, error or text]], faint, dots, dash, quiet }]: `dots` draws dots, and with
 *   "only" no line between them; `dash` is "dashed" or "dotted"; `quiet` keeps a line out of the legend;
 * band: { name, points: [[x, expected, low, high]] }; levels: [{ name, y }]; at: x of an upright line; none: what is
 *   said instead where there is nothing to draw.
 */
export function makeChart({ title, unit, height = 150, cursor = makeCursor(), legendClass = "" }) {
  const svg = mark("svg", { "aria-hidden": "true", height });
  const legend = el("ul", { class: `legend ${legendClass}` });
  const label = [`${title}: crosshair`, unit].filter(Boolean).join(", ");
  const plot = el("div", { class: "plot", role: "slider", tabindex: 0, "aria-label": label }, svg);
  plot.style.height = `${height}px`;
  const name = el("figcaption", {}, el("span", { class: "title" }, title), " ", el("small", {}, unit));
  const node = el("figure", { class: "chart" }, name, legend, plot);
  const clip = `clip-${++made}`;
  let width = 0; // pixels, once it is laid out
  let content = null, x = null, y = null, items = [], pending = 0, over = null, here = null, axesNow = [];
  const shapes = new WeakMap();

  const shown = () => content.lines.filter((line) => !line.quiet);
  const main = () => shown().reduce((best, line) => (line.points.length > best.length ? line.points : best), []);

  function draw() {
    pending = 0;
    if (!content || !width) return;
    svg.setAttribute("width", width);
    const right = width - RIGHT, bottom = height - BOTTOM;
    const few = (line) => (line.quiet ? line.points : thin(line.points, 3 * width));
    const lines = content.lines.map((line) => ({ ...line, points: few(line) }));
    const empty = !lines.some((line) => line.points.some(([, value]) => isNumber(value)));
    const ends = lines.flatMap((line) => [line.points[0]?.[0], line.points.at(-1)?.[0]]).filter(isNumber);
    const xs = content.x.log ? extent(ends, false) : [Math.min(0, ...ends), Math.max(0, ...ends) || 1];
    if (content.x.log) {
      const positive = extent(lines.flatMap((line) => line.points.slice(0, 2).map(([at]) => at)), true)[0];
      xs[0] = xs[0] > 0 ? xs[0] : Math.min(positive, xs[1]) / 2;
      xs[1] = Math.max(xs[1], xs[0] * 2);
    }
    if (content.x.high) xs[1] = Math.max(xs[1], content.x.high);
    const band = bandWithin(content.band?.points ?? [], xs);
    const start = content.y.close ? xs[0] + (xs[1] - xs[0]) * EARLY : -Infinity;
    const close = lines.some((line) => line.points.filter(([at]) => at >= start).length > FEW);
    const ys = content.y.marks ? [content.y.low, content.y.high] : extent([
      ...lines.flatMap((line) => late(line.points, start, close).flatMap((point) => reach(point, line))),
      ...late(band, start, close).flatMap(([, , low, high]) => [low, high]),
      ...(content.levels ?? []).map((level) => level.y), content.y.low ?? null, content.y.high ?? null,
    ], content.y.log);
    const margin = content.y.log ? 0 : (ys[1] - ys[0]) * 0.04;
    if (!content.y.marks) ys[0] = content.y.low === 0 && ys[0] >= 0 ? 0 : ys[0] - margin;
    if (!content.y.marks) ys[1] += margin;
    x = scaling(xs[0], xs[1], LEFT, right, content.x.log);
    y = scaling(ys[0], ys[1], bottom, TOP, content.y.log);
    axesNow = [width, ...xs, ...ys, content.x.log, content.y.log];

    const parts = [];
    if (empty) {
      const why = lines.some((line) => line.points.length) ? "no finite value" : content.none ?? "not recorded";
      parts.push(mark("line", { class: "rule", x1: LEFT, x2: right, y1: bottom, y2: bottom }),
        mark("text", { class: "none", x: (LEFT + right) / 2, y: (TOP + bottom) / 2 }, why));
    } else {
      for (const value of ticks(ys[0], ys[1], (bottom - TOP) / 34, content.y)) {
        parts.push(mark("line", { class: "rule", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
          mark("text", { class: "y", x: LEFT - 8, y: y(value) + 4 }, (content.y.tick ?? content.y.form)(value)));
      }
      let free = 0;
      for (const value of ticks(xs[0], xs[1], (right - LEFT) / 80, content.x)) {
        const words = free ? content.x.form(value) : placed(value); // the unit stands once
        const label = mark("text", { class: "x", x: x(value), y: height - 6 }, words);
        const half = label.textContent.length * 3.6;
        const middle = Math.min(x(value), right + RIGHT - half);
        if (middle - half < free) continue;
        label.setAttribute("x", middle);
        parts.push(label, mark("line", { class: "tick", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 }));
        free = middle + half + 12;
      }
    }
    const inside = mark("g", { "clip-path": `url(#${clip})` });
    const frame = mark("rect", { x: LEFT - 4, y: 0, width: right - LEFT + 8, height: bottom + 4 });
    parts.push(mark("clipPath", { id: clip }, frame), inside);
    if (band.length) {
      const edge = (points, i) => points.map((point) => `${x(point[0]).toFixed(1)} ${y(point[i]).toFixed(1)}`);
      const around = [...edge(band, 3), ...edge([...band].reverse(), 2)].join("L");
      inside.append(mark("path", { class: "band", d: `M${around}Z` }),
        mark("path", { class: "expected", d: path(band, x, y) }));
    }
    for (const level of empty ? [] : content.levels ?? []) {
      parts.push(mark("line", { class: "level", x1: LEFT, x2: right, y1: y(level.y), y2: y(level.y) }),
        mark("text", { class: "level", x: right, y: y(level.y) - 5 }, level.name));
    }
    for (const line of lines) inside.append(...drawn(line));
    here = mark("line", { class: "here", y1: TOP, y2: bottom });
    over = mark("g", { class: "cross" });
    svg.replaceChildren(...parts, here, over);
    stand();
    point();
  }

  /** The upright line, where the view stands. */
  function stand() {
    if (!here) return;
    here.style.display = content.at == null ? "none" : "";
    if (content.at == null) return;
    here.setAttribute("x1", x(content.at));
    here.setAttribute("x2", x(content.at));
  }

  /** A place on the horizontal axis with its unit. */
  function placed(value) {
    const unit = value === 1 ? content.x.unit?.replace(/s$/, "") : content.x.unit;
    return [content.x.form(value), unit].filter(Boolean).join(" ");
  }

  function drawn(line) {
    const parts = [];
    if (line.dots !== "only") {
      const kinds = ["line", line.faint && "faint", line.dash].filter(Boolean);
      const shape = mark("path", { class: kinds.join(" "), d: kept(line.points) });
      shape.style.stroke = line.color;
      parts.push(shape);
    }
    if (!line.dots && line.points.length > 1) return parts;
    for (const [at, value, error] of line.points) {
      if (value === null) continue;
      const [left, top] = [x(at), y(value)];
      if (typeof error === "number") {
        const bar = mark("path", { class: "error", d: `M${left} ${y(value - error)}V${y(value + error)}` });
        bar.style.stroke = line.color;
        parts.push(bar);
      }
      const r = line.points.length > 60 ? 2 : 3;
      const dot = mark("circle", { class: "dot", cx: left.toFixed(1), cy: top.toFixed(1), r });
      dot.style.fill = line.color;
      parts.push(dot);
    }
    return parts;
  }

  /** The shape of a line, computed again only when its points or the axes changed. */
  function kept(points) {
    const key = [points.length, ...axesNow].join();
    if (shapes.get(points)?.key !== key) shapes.set(points, { key, d: path(points, x, y) });
    return shapes.get(points).d;
  }

  /** The crosshair, and the values under it, or the last ones where there is none. */
  function point() {
    if (!content || !x) return;
    const marks = [];
    let words = [];
    const where = cursor.x;
    for (const [i, line] of shown().entries()) {
      const found = cursor.x === null ? line.points.length - 1 : nearest(line.points, cursor.x);
      const [at, value, more] = line.points[found] ?? [null, undefined];
      const text = at === null ? "none" : value === null ? "not finite" : said(line, value, more, at);
      write(items[i], text);
      words.push(`${line.name} ${text}`);
      if (where === null || at === null || value === null || y(value) < 0) continue;
      const dot = mark("circle", { class: "dot on", cx: x(at), cy: y(value), r: 4 });
      dot.style.fill = line.color;
      marks.push(dot);
    }
    if (content.band && items.length > shown().length) {
      const band = content.band.points, place = where ?? main().at(-1)?.[0] ?? 0;
      const near = place >= band[0][0] && place <= band.at(-1)[0] && band[nearest(band, place)];
      write(items.at(-1), near ? `${content.y.form(near[2])} to ${content.y.form(near[3])}` : "none");
    }
    if (where !== null && x(where) <= width - RIGHT + 1) {
      marks.unshift(mark("line", { class: "hair", x1: x(where), x2: x(where), y1: TOP, y2: height - BOTTOM }),
        flag(placed(where), x(where)));
      words = [`at ${placed(where)}`, ...words];
    }
    over?.replaceChildren(...marks);
    const points = main();
    plot.setAttribute("aria-valuemin", points[0]?.[0] ?? 0);
    plot.setAttribute("aria-valuemax", points.at(-1)?.[0] ?? 0);
    plot.setAttribute("aria-valuenow", where ?? points.at(-1)?.[0] ?? 0);
    plot.setAttribute("aria-valuetext", words.join("; ") || "nothing");
  }

  function said(line, value, more, at) {
    if (typeof more === "string") return `${content.x.form(at)}: ${more}`;
    return typeof more === "number" ? `${content.y.form(value)} ± ${content.y.form(more)}` : content.y.form(value);
  }

  /** Where on the axis the crosshair is, on its foot. */
  function flag(text, at) {
    const half = text.length * 3.7 + 8;
    const middle = Math.max(half, Math.min(at, width - half));
    return mark("g", { class: "flag" },
      mark("rect", { x: middle - half, y: height - 20, width: 2 * half, height: 19, rx: 4 }),
      mark("text", { x: middle, y: height - 6 }, text));
  }

  function later() {
    pending ||= requestAnimationFrame(draw);
  }

  function follow(event) {
    if (!x) return;
    const points = main();
    const left = event.clientX - plot.getBoundingClientRect().left;
    let best = null, apart = Infinity;
    for (const [at] of points) {
      const far = Math.abs(x(at) - left);
      if (far < apart) [best, apart] = [at, far];
    }
    cursor.move(best);
  }

  function press(event) {
    const points = main();
    const far = Math.max(1, Math.round(points.length / 10));
    const here = cursor.x === null ? points.length - 1 : nearest(points, cursor.x);
    const to = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - far, PageUp: here + far, Home: 0, End: points.length - 1,
    }[event.key];
    if (event.key === "Escape") cursor.move(null);
    if (to === undefined || !points.length) return;
    event.preventDefault();
    cursor.move(points[Math.max(0, Math.min(to, points.length - 1))][0]);
  }

  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", () => cursor.move(null));
  plot.addEventListener("blur", () => cursor.move(null));
  plot.addEventListener("keydown", press);
  cursor.listen(point);
  new ResizeObserver(([{ contentRect }]) => { // comes after the layout and before anything of it is seen
    const before = width;
    width = Math.floor(contentRect.width);
    if (width !== before) draw();
  }).observe(plot);

  return {
    node,
    cursor,
    at(value) {
      if (content) content.at = value;
      stand();
    },
    show(next) {
      const names = next.lines.filter((line) => !line.quiet).map(({ name, color, faint, dash }) =>
        [name, color, [faint && "faint", dash]]);
      if (next.band?.points.length) names.push([next.band.name, "", ["shade"]]);
      const key = JSON.stringify(names);
      if (legend.dataset.key !== key) {
        legend.dataset.key = key;
        items = names.map(() => el("span", { class: "value" }));
        legend.replaceChildren(...names.map(([text, color, kinds], i) => {
          const swatch = el("span", { class: ["swatch", ...kinds].filter(Boolean).join(" ") });
          swatch.style.color = color;
          return el("li", {}, swatch, el("span", { class: "name" }, text), " ", items[i]);
        }));
      }
      content = next;
      later();
    },
  };
}

/** The points from a place on; where few are, the last one if that suffices, else all. */
function late(points, start, close) {
  const after = points.filter(([at]) => at >= start);
  return after.length > FEW ? after : close ? points.slice(-1) : points;
}

/** What of a point the axis must reach. */
function reach([, value, error], line) {
  return line.dots && typeof error === "number" && value !== null ? [value - error, value + error] : [value];
}

/** The part of a band that lies on the axis, cut at its right end. */
function bandWithin(points, [low, high]) {
  const inside = points.filter(([at]) => at >= low && at <= high);
  const after = points.find(([at]) => at > high);
  const before = inside.at(-1) ?? points.filter(([at]) => at < low).at(-1);
  if (!after || !before) return inside;
  const share = (high - before[0]) / (after[0] - before[0]);
  return [...inside, [high, ...[1, 2, 3].map((i) => before[i] + share * (after[i] - before[i]))]];
}

/** A small line without axes, for a table. */
export function sparkline(values, width = 104, height = 28) {
  const points = values.map((value, i) => [i, value]);
  const [low, high] = extent(values, false);
  const x = scaling(0, Math.max(1, values.length - 1), 2, width - 2, false);
  const y = scaling(low, high, height - 3, 3, low > 0);
  return mark("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    mark("path", { class: "line", d: path(points, x, y) }));
}
