// The attention film: every head's map at every snapshot, one of them large, the losses of the tokens, and what each
// head came to do.

import { makeChart, makeCursor } from "./chart.js";
import { source } from "./data.js";
import { attention, layoutOf, lossesOf, mapColors, paintMap, sizeOf } from "./frames.js";
import { makeHead } from "./head.js";
import { labelOf, surpriseLegend, tokenText } from "./tokens.js";
import { choice, el, isNumber, whole, write } from "./words.js";

const GAP = 2; // pixels between two small maps
const CELL = 9; // pixels of an enlarged cell at least, so that its token can be read
const LETTERS = 10; // of a token beside the enlarged map
const KEPT = 128e6; // bytes of snapshots held in memory
const BEAT = 130; // milliseconds a snapshot while playing
const POLL = 8000; // milliseconds until new snapshots of a training run are asked for
const FLAT = 0.25; // share up to which the axis of a score reaches at least
const FAINT = 20000; // points of the faint lines of all heads, at most

const SCORES = {
  previous: ["Previous token", "attention to the token before"],
  first: ["First token", "attention to the first token"],
  same: ["Same token", "attention to the same token, earlier"],
  induction: ["Induction", "attention to what came after the same token"],
  entropy: ["Entropy", "0 looks at one token, 1 at all alike"],
};

export async function showFilm(main, name) {
  let film = await source.film(name);
  const detail = await source.run(name).catch(() => ({ state: "done", run: {}, film: true, checkpoints: [] }));
  const head = makeHead(name, detail, "film");
  if (!film.steps.length) {
    main.append(head.node, el("p", { class: "soft" }, "No snapshot was recorded yet."));
    return () => {};
  }
  const layouts = layoutOf(film);
  const frames = makeFrames(name, () => film.steps, sizeOf(layouts));
  const last = layouts.length - 1; // the text that repeats itself, on which induction shows
  const at = { index: film.steps.length - 1, text: last, layer: 0, head: 0, query: layouts[last].tokens - 1 };
  let bytes = null, colors = mapColors(), playing = null, poll = null, wanted = 0, left = false;

  // The way through training.
  const slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "snapshot",
    oninput: () => go(+slider.value) });
  const button = el("button", { class: "play", onclick: () => (playing ? pause() : play()) }, "Play");
  const where = el("output", { class: "where" });
  const texts = choice("text", Object.fromEntries(film.texts.map((text, i) => [i, text.name])), last, (value) => {
    [at.text, at.query] = [+value, layouts[+value].tokens - 1];
    fillTokens();
    draw();
  });
  const controls = el("div", { class: "bar controls" }, button, slider, where, film.texts.length > 1 && texts);

  // All heads.
  const canvas = el("canvas", { "aria-hidden": "true" });
  const buttons = el("div", { class: "heads", role: "group", "aria-label": "heads" });
  const heads = Array.from({ length: film.layers * film.heads }, (_, map) => el("button", {
    tabindex: -1, title: nameOf(map), "aria-label": nameOf(map), "aria-pressed": false,
    onclick: () => choose(map, false),
  }));
  const numbers = (count, kind) => el("div", { class: `numbers ${kind}`, "aria-hidden": "true" },
    Array.from({ length: count }, (_, i) => el("span", {}, count <= 16 || i % 4 === 0 ? i : "")));
  const grid = el("div", { class: "maps" }, el("span", { class: "corner soft" }, "layer"),
    numbers(film.heads, "across"), numbers(film.layers, "down"), el("div", { class: "sheet" }, canvas, buttons));
  buttons.append(...heads);
  grid.style.setProperty("--heads", film.heads);
  grid.style.setProperty("--layers", film.layers);

  // One head.
  const large = el("canvas", { "aria-hidden": "true" });
  const lens = el("div", { class: "lens", role: "slider", tabindex: 0, "aria-label": "token that attends",
    "aria-orientation": "vertical", "aria-valuemin": 0 }, large);
  const title = el("h2");
  const says = el("p", { class: "says" });
  const does = el("dl", { class: "facts small" });
  const one = el("section", { class: "one" }, title, el("div", { class: "wide" }, lens), says, does);

  // The text and the scores.
  const tokens = tokenText("tokens of the text", (index) => { at.query = index; drawHead(); });
  const charts = Object.entries(SCORES).map(([key, [label, unit]]) => {
    const best = el("button", { class: "link" });
    const chart = makeChart({ title: label, unit, height: 170, cursor: makeCursor() });
    return { key, chart, best, faint: [], node: el("div", {}, chart.node, best) };
  });

  main.append(head.node, controls, el("div", { class: "film" },
    el("div", {}, el("h2", {}, "All heads"), grid, el("p", { class: "soft" },
      "Each square is a head: a row for each token, strong where it attends. ",
      "Layers go down, heads to the right, counted from 0."),
    el("h2", {}, "Loss of each token"), tokens.node, surpriseLegend(), el("p", { class: "soft" },
      "The blue line under a token tells how much the framed one attends to it, in the chosen head.")), one),
  el("section", {}, el("h2", {}, "What each head does"),
    el("div", { class: "grid" }, charts.map((chart) => chart.node))));

  function nameOf(map) {
    return `layer ${Math.floor(map / film.heads)}, head ${map % film.heads}`;
  }
  const chosen = () => at.layer * film.heads + at.head;

  function choose(map, focus) {
    heads[chosen()].setAttribute("tabindex", -1);
    heads[chosen()].setAttribute("aria-pressed", false);
    [at.layer, at.head] = [Math.floor(map / film.heads), map % film.heads];
    heads[map].setAttribute("tabindex", 0);
    heads[map].setAttribute("aria-pressed", true);
    if (focus) heads[map].focus();
    drawHead();
    drawCharts();
  }

  buttons.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (value, count) => Math.max(0, Math.min(value, count - 1));
    choose(within(at.layer + step[0], film.layers) * film.heads + within(at.head + step[1], film.heads), true);
  });

  lens.addEventListener("keydown", (event) => {
    const last = layouts[at.text].tokens - 1;
    const [before, after] = [at.query - 1, at.query + 1];
    const keys = { ArrowUp: before, ArrowLeft: before, ArrowDown: after, ArrowRight: after, Home: 0, End: last };
    const to = keys[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tokens.choose(Math.max(0, Math.min(to, last)));
  });
  const point = (event) => {
    const { margin, cell } = measures();
    const row = Math.floor((event.clientY - large.getBoundingClientRect().top - margin) / cell);
    if (row >= 0 && row < layouts[at.text].tokens && row !== at.query) tokens.choose(row);
  };
  large.addEventListener("pointermove", point);
  large.addEventListener("pointerdown", point);

  /** To a snapshot: shown at once where it is in memory, else as soon as it is read. */
  async function go(index) {
    const begin = performance.now(), mine = ++wanted;
    at.index = index;
    slider.value = index;
    write(where, `step ${whole(film.steps[index])}`);
    slider.setAttribute("aria-valuetext", where.textContent);
    try {
      bytes = frames.ready(film.steps[index]) ?? (await frames.get(film.steps[index]));
    } catch {
      if (mine === wanted) blank();
      return;
    }
    if (mine !== wanted) return;
    draw();
    canvas.dataset.frameMs = (performance.now() - begin).toFixed(2);
    canvas.dataset.step = film.steps[index];
    frames.ahead(index);
  }

  /** Of a snapshot that cannot be had nothing is shown, least of all another one. */
  function blank() {
    bytes = null;
    for (const one of [canvas, large]) one.getContext("2d").clearRect(0, 0, one.width, one.height);
    fillTokens();
    write(says, `The snapshot of step ${whole(film.steps[at.index])} cannot be read: it is damaged or gone.`);
    canvas.dataset.step = "";
  }

  function draw() {
    if (!bytes) return;
    const text = layouts[at.text], pitch = text.tokens + GAP;
    const [width, height] = [film.heads * pitch, film.layers * pitch];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let map = 0; map < film.layers * film.heads; map++) {
      const [row, column] = [Math.floor(map / film.heads), map % film.heads];
      paintMap(bytes, text, map, pixels, (row * pitch + GAP / 2) * width + column * pitch + GAP / 2, width, colors);
    }
    pen.putImageData(image, 0, 0);
    canvas.style.imageRendering = canvas.clientWidth > width ? "pixelated" : "auto";
    drawLosses();
    drawHead();
    for (const { chart } of charts) chart.at(film.steps[at.index]);
    drawScores();
  }

  /** How large the enlarged map is: its cells, and the room for the tokens beside it. */
  function measures() {
    const longest = Math.max(...film.texts[at.text].tokens.map((token) => labelOf(token).length));
    const margin = 18 + 6 * Math.min(longest, LETTERS);
    const cell = Math.max(CELL, Math.floor((one.clientWidth - margin - 4) / layouts[at.text].tokens));
    return { margin, cell };
  }

  function drawHead() {
    if (!bytes) return;
    const text = layouts[at.text], { margin, cell } = measures();
    const labels = film.texts[at.text].tokens.map(labelOf);
    const size = margin + text.tokens * cell + 2, scale = devicePixelRatio;
    [large.width, large.height] = [size * scale, size * scale];
    [large.style.width, large.style.height] = [`${size}px`, `${size}px`];
    const small = new OffscreenCanvas(text.tokens, text.tokens);
    const image = new ImageData(text.tokens, text.tokens);
    paintMap(bytes, text, chosen(), new Uint32Array(image.data.buffer), 0, text.tokens, colors);
    small.getContext("2d").putImageData(image, 0, 0);

    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const pen = large.getContext("2d");
    pen.scale(scale, scale);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, margin, margin, text.tokens * cell, text.tokens * cell);
    const weights = attention(bytes, text, chosen(), at.query);
    pen.font = `${Math.min(12, cell)}px ui-monospace, "DejaVu Sans Mono", monospace`;
    pen.textBaseline = "middle";
    labels.forEach((label, i) => {
      const middle = margin + (i + 0.5) * cell;
      const short = label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label;
      pen.fillStyle = i === at.query ? color("--best") : color("--soft");
      pen.textAlign = "right";
      pen.fillText(short, margin - 6, middle, margin - 8);
      pen.fillStyle = (weights[i] ?? 0) >= 0.1 ? color("--ink") : color("--soft");
      pen.save();
      pen.translate(middle, margin - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(short, 0, 0, margin - 8);
      pen.restore();
    });
    pen.strokeStyle = color("--best");
    pen.lineWidth = 1.5;
    pen.strokeRect(margin - 0.5, margin + at.query * cell - 0.5, (at.query + 1) * cell + 1, cell + 1);

    write(title, `Layer ${at.layer}, head ${at.head}`);
    const most = weights.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]).slice(0, 4);
    const told = most.filter(([weight]) => weight >= 0.005)
      .map(([weight, key]) => `“${labels[key]}” (${key}) ${weight.toFixed(2)}`).join(", ");
    write(says, `Token ${at.query}, “${labels[at.query]}”, attends to ${told || "no token much"}.`);
    lens.setAttribute("aria-valuemax", text.tokens - 1);
    lens.setAttribute("aria-valuenow", at.query);
    lens.setAttribute("aria-valuetext", says.textContent);
    large.dataset.map = `${at.text}/${film.steps[at.index]}/${chosen()}`;
    for (const [i, token] of [...tokens.node.children].entries()) {
      token.style.setProperty("--attended", Math.sqrt(weights[i] ?? 0).toFixed(3));
      token.classList.toggle("query", i === at.query);
    }
    drawDoes();
  }

  function fillTokens() {
    tokens.clear();
    const { tokens: words } = film.texts[at.text];
    words.forEach((word) => tokens.add(word, NaN, "loss unknown"));
  }

  function drawLosses() {
    for (const [i, loss] of lossesOf(bytes, layouts[at.text]).entries()) {
      tokens.color(i, loss, isNumber(loss) ? `loss ${loss.toFixed(2)} nats` : "nothing before it");
    }
  }

  const scoresAt = (index) => film.scores.find(({ step }) => step === film.steps[index])?.scores;

  function drawDoes() {
    const scores = scoresAt(at.index);
    does.replaceChildren(...Object.entries(SCORES).map(([key, [label]]) => el("div", {}, el("dt", {}, label),
      el("dd", {}, scores?.[key]?.[at.layer]?.[at.head]?.toFixed(3) ?? "unknown"))));
  }

  function drawScores() {
    const scores = scoresAt(at.index);
    for (const { key, best } of charts) {
      const values = scores?.[key]?.flat() ?? [];
      const top = highest(key, scores);
      const which = key === "entropy" ? "lowest" : "highest";
      write(best, values.length ? `${which} here: ${nameOf(top)}, ${values[top]?.toFixed(3)}` : "not scored");
      best.disabled = !values.length;
      best.onclick = () => choose(top, false);
    }
  }

  /** The head that stands out in a score. */
  function highest(key, scores) {
    const values = scores?.[key]?.flat() ?? [], sign = key === "entropy" ? -1 : 1;
    return values.reduce((found, value, i) => (sign * value > sign * values[found] ? i : found), 0);
  }

  /** Each head's score over the steps: all of them faint, the chosen one on top. */
  function drawCharts() {
    const steps = film.scores.map(({ step }) => step), last = steps.at(-1);
    const log = steps.length > 2 && last > 50;
    for (const row of charts) {
      const { key, chart } = row;
      if (row.drawn !== steps.length) {
        const every = Math.ceil((film.layers * film.heads * steps.length) / FAINT);
        const some = film.scores.filter((_, i) => i % every === 0 || i === steps.length - 1);
        row.faint = heads.flatMap((_, map) => [...some.map(({ step, scores }) =>
          [step, scores[key]?.[Math.floor(map / film.heads)]?.[map % film.heads] ?? null]), [last, null]]);
        row.drawn = steps.length;
      }
      chart.show({
        x: { form: whole, unit: "steps", log }, at: film.steps[at.index], none: "not scored",
        y: { form: (value) => value.toFixed(3), tick: String, low: 0, high: key === "entropy" ? 1 : FLAT },
        lines: [
          { name: "every head", color: "var(--soft)", faint: true, quiet: true, dots: steps.length === 1,
            points: row.faint },
          { name: nameOf(chosen()), color: "var(--c1)", dots: steps.length < 30,
            points: film.scores.map(({ step, scores }) => [step, scores[key]?.[at.layer]?.[at.head] ?? null]) },
        ],
      });
    }
  }

  function play() {
    if (at.index === film.steps.length - 1) go(0);
    write(button, "Pause");
    playing = setInterval(() => {
      if (at.index === film.steps.length - 1) pause();
      else if (frames.ready(film.steps[at.index + 1]) || !frames.busy()) go(at.index + 1);
    }, BEAT);
  }
  function pause() {
    clearInterval(playing);
    playing = null;
    write(button, "Play");
  }

  /** Whether a film is this one with what was recorded since. It is not after a roll-back, or of another run by this
   * name: then what is in memory no longer holds. */
  function goesOn(next) {
    const told = ({ layers, heads, texts }) => JSON.stringify([layers, heads, texts]);
    return told(next) === told(film) && film.steps.every((step, i) => step === next.steps[i]);
  }

  function fitSlider() {
    slider.max = film.steps.length - 1;
    button.hidden = slider.hidden = film.steps.length < 2;
  }

  /** Snapshots that were recorded since; who stands at the newest stays there. */
  async function look() {
    const next = await source.film(name).catch(() => film);
    const fresh = await source.run(name).catch(() => detail);
    head.update(fresh);
    if (left) return;
    if (!goesOn(next)) return dispatchEvent(new Event("hashchange")); // the view begins anew
    if (next.steps.length > film.steps.length) {
      const newest = at.index === film.steps.length - 1;
      film = next;
      fitSlider();
      drawCharts();
      go(newest ? film.steps.length - 1 : at.index);
    }
    poll = setTimeout(look, POLL);
  }

  const theme = matchMedia("(prefers-color-scheme: dark)");
  const recolor = () => { colors = mapColors(); draw(); };
  theme.addEventListener("change", recolor);
  new ResizeObserver(() => draw()).observe(one);
  fitSlider();
  fillTokens();
  choose(film.scores.length ? highest("induction", film.scores.at(-1).scores) : 0, false);
  await go(at.index);
  if (source.live) poll = setTimeout(look, POLL);
  return () => { left = true; pause(); clearTimeout(poll); frames.end(); theme.removeEventListener("change", recolor); };
}

/** Snapshots in memory: those that are asked for, and the others one by one, nearest first, while there is room. */
function makeFrames(name, steps, size) {
  const held = new Map(); // step -> bytes, the longest unused first
  let loading = null, here = 0, ended = false;

  /** A snapshot as it is on the disk; an error if it is damaged. */
  async function read(step) {
    const bytes = await source.frame(name, step);
    if (bytes.length !== size) throw new Error("damaged");
    return keep(step, bytes);
  }
  function keep(step, bytes) {
    held.delete(step);
    held.set(step, bytes);
    while (held.size > 1 && held.size * size > KEPT) held.delete(held.keys().next().value);
    return bytes;
  }
  async function next() {
    const room = Math.floor(KEPT / size) - 1;
    const near = steps().map((step, i) => [Math.abs(i - here - 0.4), step]).sort((a, b) => a[0] - b[0]).slice(0, room);
    const missing = near.find(([, step]) => !held.has(step));
    if (!missing || ended) return (loading = null);
    loading = missing[1];
    try {
      await read(missing[1]);
    } catch {
      return (loading = null); // asked for again when it is wanted
    }
    next();
  }
  return {
    ready: (step) => (held.has(step) ? keep(step, held.get(step)) : undefined),
    get: read,
    busy: () => loading !== null,
    ahead(index) {
      here = index;
      if (loading === null) next();
    },
    end: () => (ended = true),
  };
}
