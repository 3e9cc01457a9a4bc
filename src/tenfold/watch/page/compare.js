// Several runs over each other, and the fields in which they differ.

import { makeChart, makeCursor } from "./chart.js";
import { source } from "./data.js";
import { follow } from "./follow.js";
import { axisBar, lossAxis, plotted, smooth, xAxis } from "./run.js";
import { badge, crumbs, el, figure, many, plain, runLink } from "./words.js";

const COLORS = 7;
const NAMED = 5; // runs that small charts name, too
const DASHES = [null, "dashed", "dotted"]; // once all colours are taken

const CHARTS = [
  { title: "Training loss", unit: "nats a token, smoothed", key: "loss", loss: true, smooth: true, height: 320 },
  { title: "Validation loss", unit: "nats a token", key: "val_loss", loss: true, dots: true, height: 320 },
  { title: "Learning rate", unit: "", key: "lr", form: figure, low: 0 },
  { title: "Gradient norm", unit: "before clipping", key: "grad_norm", form: figure, log: true },
  { title: "Throughput", unit: "tokens a second", key: "tokens_per_second", form: many, low: 0 },
  { title: "HellaSwag", unit: "share right, by mean loss", key: "hellaswag_acc_norm", form: figure, dots: true },
];

/** A colour and a dash for each run, in the order of the address: one more changes none of them. */
function looks(names) {
  return (name) => {
    const slot = names.indexOf(name);
    return { color: `var(--c${slot % COLORS})`, dash: DASHES[Math.floor(slot / COLORS) % DASHES.length] };
  };
}

export async function showCompare(main, ...names) {
  const [{ runs, stop }, differing] = await Promise.all([follow(names, () => draw()), source.compare(names)]);
  const look = looks(names);
  const cursor = makeCursor();
  const crowded = names.length > NAMED;
  const charts = CHARTS.map((row) => makeChart({ ...row, cursor, legendClass: crowded && !row.loss ? "unseen" : "" }));
  const key = el("ul", { class: "key" }, names.map((name) => {
    const swatch = el("span", { class: ["swatch", look(name).dash].filter(Boolean).join(" ") });
    swatch.style.color = look(name).color;
    return el("li", {}, swatch, el("a", { href: runLink(name) }, name), " ", badge(runs[name].detail.state));
  }));
  main.append(crumbs(), el("h1", { tabindex: -1 }, `${names.length} runs compared`), key, axisBar(() => draw()),
    el("div", { class: "grid two" }, charts.slice(0, 2).map((chart) => chart.node)),
    el("div", { class: "grid four" }, charts.slice(2).map((chart) => chart.node)),
    fieldsTable(names, differing.fields));

  function draw() {
    const axis = xAxis();
    CHARTS.forEach((row, i) => charts[i].show({
      x: axis, y: row.loss ? lossAxis() : { form: row.form, low: row.low, log: row.log },
      lines: names.map((name) => {
        const points = runs[name].series[row.key] ?? [], at = axis.of(runs[name]);
        return { name, ...look(name), dots: row.dots, points: row.smooth ? smooth(points, at) : plotted(points, at) };
      }),
    }));
  }
  draw();
  return stop;
}

function fieldsTable(names, fields) {
  const rows = Object.entries(fields);
  const head = el("tr", {}, el("th", { scope: "col" }, "field"), names.map((name) => el("th", { scope: "col" }, name)));
  const body = rows.map(([field, values]) =>
    el("tr", {}, el("th", { scope: "row" }, field), values.map((value, i) => el("td", { "data-run": names[i] }, plain(value)))));
  const table = el("table", { class: "fields differing" }, el("thead", {}, head), el("tbody", {}, body));
  return el("section", {}, el("h2", {}, "Fields in which they differ"), rows.length
    ? el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "fields" }, table)
    : el("p", { class: "soft" }, "None."));
}
