// One run: its curves, what happened along the way, its scores, its samples, and what it is made of.

import { makeChart, makeCursor } from "./chart.js";
import { source } from "./data.js";
import { follow } from "./follow.js";
import { makeHead } from "./head.js";
import {
  ago, bytes, choice, el, figure, isNumber, many, nats, percent, place, plain, span, standing, whole, write,
} from "./words.js";

const WINDOW = 0.05; // share of a step on either side over which the loss is smoothed
const SAMPLES = 10; // shown before somebody asks for all
const EVENTS = 300; // listed, the newest
const GPT2 = { y: 0.2955, name: "GPT-2 124M 0.2955" };
const CHANCE = { y: 0.25, name: "chance 0.25" };
const NAMES = { hellaswag: "HellaSwag", lambada: "LAMBADA", wikitext: "WikiText" };
const KINDS = { acc_norm: "share right, by mean loss", acc: "share right, by summed loss" };
const ROUTINE = new Set(["start", "save", "done"]);

// The small charts, an `optional` one only where it was recorded: what each shows of the series, and how.
const SMALL = [
  { title: "Learning rate", unit: "", keys: { lr: "learning rate" }, form: figure, low: 0 },
  { title: "Gradient norm", unit: "before clipping", keys: { grad_norm: "norm" }, form: figure, log: true },
  { title: "Loss scale", unit: "fp16", keys: { scale: "scale" }, form: plain, log: true, optional: true },
  { title: "Throughput", unit: "tokens a second", keys: { tokens_per_second: "tokens/s" }, form: many, low: 0 },
  { title: "MFU", unit: "of the device's peak rate", keys: { mfu: "MFU" }, form: percent, low: 0,
    none: "unknown: no peak rate of this device" },
  { title: "Waiting for data", unit: "of the time", keys: { data_wait: "share" }, form: percent, low: 0 },
  { title: "Memory", unit: "", keys: { memory_bytes: "now", peak_memory_bytes: "most so far" }, form: bytes, low: 0 },
];

/** What the horizontal axis is: a record's place on it, how that is written, and its unit. */
export const AXES = {
  steps: { of: (run) => (point) => point[0], form: whole, unit: "steps", whole: true },
  tokens: { of: (run) => (point) => point[0] * (run.tokensPerStep || 1), form: many, unit: "tokens", whole: true },
  time: { of: since, form: span, time: true },
};
export const axes = { x: "steps", log: "linear", y: "close" }; // as chosen last, for every view

/** Seconds since a run's first record. */
function since(run) {
  const begin = Math.min(...Object.values(run.series).map((points) => points[0]?.[1] ?? Infinity));
  return (point) => point[1] - begin;
}

/** Switches of the axes; `changed` redraws. */
export function axisBar(changed) {
  const set = (name) => (value) => { axes[name] = value; changed(); };
  return el("div", { class: "bar axes" },
    choice("against", { steps: "steps", tokens: "tokens", time: "time" }, axes.x, set("x")),
    choice("horizontal", { linear: "linear", log: "log" }, axes.log, set("log")),
    choice("loss", { close: "close up", all: "all", log: "log" }, axes.y, set("y")));
}

export const lossAxis = () => ({ form: nats, tick: figure, log: axes.y === "log", close: axes.y === "close" });
export const xAxis = () => ({ ...AXES[axes.x], log: axes.log === "log" });

/** The mean of a series over the points near each, farther the later it is: [x, mean], x as `at` says. */
export function smooth(points, at) {
  const smoothed = [];
  let low = 0, high = 0, sum = 0, count = 0;
  const add = (value, sign) => { if (isNumber(value)) [sum, count] = [sum + sign * value, count + sign]; };
  points.forEach((point, i) => {
    const reach = Math.max(WINDOW * point[0], 0.5);
    while (high < points.length && (points[high][0] <= point[0] + reach || high < i + 2)) add(points[high++][2], 1);
    while (low < i - 1 && points[low][0] < point[0] - reach) add(points[low++][2], -1);
    smoothed.push([at(point), count && isNumber(point[2]) ? sum / count : null]);
  });
  return smoothed;
}

export const plotted = (points, at) => (points ?? []).map((point) => [at(point), point[2]]);

export async function showRun(main, name) {
  const { runs, stop } = await follow([name], () => draw());
  const run = runs[name];
  const cursor = makeCursor();
  const head = makeHead(name, run.detail, "run");
  const notice = el("div", { class: "warnings" });
  const facts = FACTS.map(([label]) => [el("dt", {}, label), el("dd")]);
  const bar = el("progress", { "aria-label": `progress of ${name}` });
  const loss = makeChart({ title: "Loss", unit: "nats a token", height: 380, cursor });
  const line = makeChart({
    title: "What happened", unit: "vital signs and events", height: 118, cursor, legendClass: "rows",
  });
  const small = SMALL.map((row) => makeChart({ ...row, cursor }));
  const scores = el("div", { class: "grid" });
  const scoreBlock = el("section", { hidden: true }, el("h2", {}, "Scores"), scores);
  const happened = makeHappened();
  const samples = makeSamples(name);
  const parts = el("section", {}, el("h2", {}, "What it is made of"));
  const charts = {};

  main.append(head.node, notice, bar, el("dl", { class: "facts" }, facts.map((pair) => el("div", {}, pair))),
    el("section", {}, el("h2", { class: "unseen" }, "Curves"), axisBar(() => draw()), loss.node, line.node,
      el("div", { class: "grid" }, small.map((chart) => chart.node))),
    scoreBlock, happened.node, samples.node, parts);
  parts.append(tables(run.detail.run));

  function draw() {
    const { detail, series, gone } = runs[name];
    const { summary } = detail;
    const axis = xAxis(), at = axis.of(runs[name]);
    head.update(detail);
    warn(notice, detail, gone);
    bar.max = summary.steps || 1;
    bar.value = summary.step ?? 0;
    FACTS.forEach(([, say], i) => {
      const text = say(summary, detail);
      write(facts[i][1], text);
      facts[i][1].classList.toggle("soft", text === "unknown");
    });

    const band = detail.curve?.points.map(([step, ...rest]) => [placeOf(series.loss, step, at), ...rest]);
    loss.show({
      x: axis, y: lossAxis(), band: band && { name: "right runs", points: band.filter(([x]) => x !== null) },
      lines: [
        { name: "training", color: "var(--c0)", faint: true, points: plotted(series.loss, at) },
        { name: "smoothed", color: "var(--c0)", points: smooth(series.loss ?? [], at) },
        { name: "validation", color: "var(--c1)", dots: true, points: plotted(series.val_loss, at) },
      ],
    });
    const lanes = lanesOf(detail.events, at);
    line.show({
      x: { ...axis, high: at(series.loss?.at(-1) ?? [0, 0]) }, none: "nothing happened yet",
      y: { form: (value) => ["routine", "events", "signs"][value] ?? "", marks: [0, 1, 2], low: -0.5, high: 2.5 },
      lines: lanes,
    });
    SMALL.forEach((row, i) => {
      const found = (key) => (key === "mfu" ? mfu(series, summary, at) : plotted(series[key], at));
      const lines = Object.entries(row.keys).map(([key, label], k) =>
        ({ name: label, color: `var(--c${2 * k})`, points: found(key) }));
      small[i].node.hidden = Boolean(row.optional) && !lines[0].points.length;
      small[i].show({ x: axis, y: { form: row.form, log: row.log, low: row.low }, none: row.none, lines });
    });
    drawScores(series, axis, at);
    happened.update(detail.events);
    samples.update(detail.samples);
  }

  function drawScores(series, axis, at) {
    const keys = Object.keys(series).filter((key) => `${key}_error` in series);
    scoreBlock.hidden = !keys.length;
    for (const key of keys) {
      const [task, kind] = key.split(/_(acc_norm|acc)$/);
      if (!charts[key]) {
        charts[key] = makeChart({ title: NAMES[task] ?? task, unit: KINDS[kind] ?? "", height: 190, cursor });
        scores.append(charts[key].node);
      }
      const errors = new Map(series[`${key}_error`].map((point) => [point[0], point[2]]));
      charts[key].show({
        x: axis, y: { form: figure }, levels: key === "hellaswag_acc_norm" ? [GPT2, CHANCE] : [],
        lines: [{ name: "± standard error", color: "var(--c1)", dots: true,
          points: series[key].map((point) => [at(point), point[2], errors.get(point[0]) ?? undefined]) }],
      });
    }
  }

  draw();
  return stop;
}

// What is said of a run above its curves.
const FACTS = [
  ["step", (s) => `${whole(s.step ?? 0)} of ${whole(s.steps)}`],
  ["time left", (s, detail) => (detail.state === "running" ? span(s.seconds_left) : "not running")],
  ["training loss", (s) => withUnit(nats(s.loss), "nats")],
  ["validation loss", (s) => withUnit(nats(s.val_loss), "nats")],
  ["best validation loss", (s) => withUnit(nats(s.best_val_loss), "nats")],
  ["against right runs", (s) => standing(s).text],
  ["throughput", (s) => withUnit(whole(s.tokens_per_second), "tokens/s")],
  ["MFU", (s) => percent(s.mfu)],
  ["last line", (s) => ago(s.updated)],
];

const withUnit = (text, unit) => (text === "unknown" ? text : `${text} ${unit}`);

/** MFU through the run: the throughput, times what the server found for the last one. */
function mfu(series, summary, at) {
  if (!isNumber(summary.mfu) || !summary.tokens_per_second) return [];
  const rate = summary.mfu / summary.tokens_per_second;
  return (series.tokens_per_second ?? []).map((point) => [at(point), point[2] === null ? null : point[2] * rate]);
}

/** Where a step of the reference stands on the axis. Against time that is known only for steps that were trained. */
function placeOf(points, step, at) {
  if (axes.x !== "time") return at([step, 0]);
  const after = (points ?? []).findIndex((point) => point[0] >= step);
  if (after < 0) return null;
  if (after === 0) return at(points[0]);
  const [left, right] = [points[after - 1], points[after]];
  return at([step, left[1] + ((step - left[0]) / (right[0] - left[0])) * (right[1] - left[1])]);
}

const LANES = { signs: ["var(--c3)", 2], events: ["var(--c2)", 1], routine: ["var(--soft)", 0] };

function laneOf(event) {
  if (event.event === "sign") return "signs";
  return ROUTINE.has(event.event) ? "routine" : "events";
}

/** What an event says, in a line. */
const saying = (event) => [event.sign ?? event.event, event.message].filter(Boolean).join(": ");

function lanesOf(events, at) {
  return Object.entries(LANES).map(([name, [color, y]]) => ({
    name, color, dots: "only",
    points: events.filter((event) => laneOf(event) === name)
      .map((event) => [at([event.step, event.time]), y, saying(event)]),
  }));
}

/** What must be seen before anything else: one line that is always there, so that nothing jumps when a sign speaks. */
function warn(node, { summary, events }, gone) {
  const signs = events.filter((event) => event.event === "sign");
  const lines = [
    gone && "The folder of this run is gone; what was read of it is still shown.",
    summary.off && summary.place && `Validation loss is ${summary.place} the band of right runs: outside tolerance.`,
    ...signs.slice(-1).map((event) => `Step ${whole(event.step)}: ${saying(event)}`),
    signs.length > 1 && `${whole(signs.length - 1)} more below.`,
  ].filter(Boolean);
  const text = lines.join(" ") || "No vital sign spoke.";
  if (node.title === text) return;
  node.title = text;
  node.classList.toggle("calm", !lines.length);
  node.replaceChildren(el("p", {}, text));
}

/** Events as lists: vital signs, and all others. */
function makeHappened() {
  const signs = el("ol", { class: "events" });
  const none = el("p", { class: "soft" }, "No vital sign spoke.");
  const rest = el("ol", { class: "events", tabindex: 0, "aria-label": "other events" });
  const count = el("summary");
  const node = el("section", {}, el("h2", {}, "Vital signs and events"), none, signs, el("details", {}, count, rest));
  let key = "";
  const item = (event) => el("li", {}, el("span", { class: "step" }, whole(event.step)),
    el("span", { class: event.event === "sign" && "bad" }, event.sign ?? event.event),
    el("span", {}, event.message ?? ""));
  return {
    node,
    update(events) {
      const fresh = `${events.length}/${events.at(-1)?.step}/${events.at(-1)?.event}`;
      if (fresh === key) return;
      key = fresh;
      const spoke = events.filter((event) => event.event === "sign");
      const others = events.filter((event) => event.event !== "sign");
      none.hidden = spoke.length > 0;
      signs.replaceChildren(...spoke.slice(-EVENTS).map(item));
      rest.replaceChildren(...others.slice(-EVENTS).reverse().map(item));
      const listed = others.length > EVENTS ? `, of which the newest ${EVENTS} are listed` : "";
      write(count, `${whole(others.length)} other event${others.length === 1 ? "" : "s"}${listed}`);
    },
  };
}

/** Samples of the same prompt one above the other, the earliest first. */
function makeSamples(name) {
  const list = el("ol", { class: "samples" });
  const more = el("button", { hidden: true, onclick: () => { all = true; update(steps); } });
  const none = el("p", { class: "soft" }, "None were written.");
  const whichOf = el("div", { class: "bar" });
  const node = el("section", {}, el("h2", {}, "Samples through training"), whichOf, none, list, more);
  const shown = new Map();
  let all = false, steps = [], which = 0, count = 1;

  const pick = (text) => [...text.children].forEach((sample, i) => (sample.hidden = i !== which));

  async function fill(text, step) {
    const { texts } = await source.samples(name, step).catch((error) => ({ texts: [error.message] }));
    text.replaceChildren(...texts.map((sample) => el("pre", {}, sample.trim() || "(only spaces)")));
    pick(text);
    if (texts.length <= count) return;
    count = texts.length;
    whichOf.replaceChildren(choice("sample", Object.fromEntries(texts.map((_, i) => [i, i + 1])), which, (value) => {
      which = +value;
      list.querySelectorAll(".text").forEach(pick);
    }));
  }
  function update(next) {
    steps = next;
    none.hidden = steps.length > 0;
    const chosen = all ? steps : spread(steps, SAMPLES);
    more.hidden = chosen.length === steps.length;
    write(more, `Show all ${whole(steps.length)} samples`);
    for (const step of chosen) {
      if (shown.has(step)) continue;
      const text = el("div", { class: "text" });
      shown.set(step, el("li", {}, el("h3", {}, `step ${whole(step)}`), text));
      fill(text, step);
    }
    place(list, chosen.map((step) => shown.get(step)));
  }
  return { node, update };
}

/** At most so many of a list, the first and the last among them, closer together where training moves faster. */
function spread(steps, most) {
  if (steps.length <= most) return steps;
  const last = steps.length - 1;
  const wanted = new Set(Array.from({ length: most }, (_, i) => Math.round(last * (i / (most - 1)) ** 1.7)));
  return steps.filter((_, i) => wanted.has(i));
}

/** Everything in run.json, a table a part; the speed with what was asked for and what it became. */
function tables(run) {
  const { model, recipe, speed, executed, cadence, environment } = run;
  const rest = Object.fromEntries(Object.entries(run).filter(([, value]) => typeof value !== "object"));
  const { versions, hardware, processes, revision } = environment ?? {};
  const became = Object.entries(speed ?? {}).map(([key, asked]) => [key, plain(asked), plain(executed?.[key])]);
  return el("div", { class: "tables" },
    table("Model", flat(model)), table("Recipe", flat(recipe)), table("Speed", became, ["asked for", "became"]),
    table("Cadence, in steps", flat(cadence)), table("Run", flat(rest)),
    table("Environment", flat({ ...versions, ...hardware, processes, revision })));
}

const flat = (part) => Object.entries(part ?? {}).map(([key, value]) => [key, plain(value)]);

function table(title, rows, columns) {
  if (!rows.length) rows = [["unknown", ""]];
  return el("div", { class: "wide" }, el("table", { class: "fields" }, el("caption", {}, title),
    columns && el("thead", {}, el("tr", {}, el("td"), columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map(([key, ...values]) => el("tr", {}, el("th", { scope: "row" }, key.replaceAll("_", " ")),
      values.map((value) => el("td", { class: value === "unknown" && "soft" }, value)))))));
}
