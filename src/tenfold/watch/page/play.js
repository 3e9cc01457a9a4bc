// The playground: a prompt, and text as a checkpoint writes it, token by token; or two checkpoints side by side.

import { source } from "./data.js";
import { makeHead } from "./head.js";
import { exactly, surpriseLegend, tokenText } from "./tokens.js";
import { el, percent, whole } from "./words.js";

// The settings: what each is called, and its limits.
const SETTINGS = {
  tokens: { label: "tokens", min: 1, max: 2000, step: 1, value: 80 },
  temperature: { label: "temperature", min: 0, max: 5, step: 0.05, value: 0.8 },
  top_k: { label: "top k (0: all)", min: 0, max: 100000, step: 1, value: 0 },
  top_p: { label: "top p", min: 0.01, max: 1, step: 0.01, value: 1 },
  seed: { label: "seed", min: 0, max: 4294967295, step: 1, value: 1 },
};

export async function showPlay(main, name) {
  const detail = await source.run(name);
  const head = makeHead(name, detail, "play");
  const steps = [...detail.checkpoints].reverse();
  const checkpoints = () => steps.map((step) => el("option", { value: step }, `step ${whole(step)}`));
  const first = el("select", {}, checkpoints());
  const second = el("select", {}, el("option", { value: "" }, "none"), checkpoints());
  const prompt = el("textarea", { rows: 3, spellcheck: "false" });
  prompt.value = (detail.run.cadence?.prompt ?? "").trim() ? detail.run.cadence.prompt : "Once upon a time";
  const inputs = Object.entries(SETTINGS).map(([key, { label, ...limits }]) =>
    [key, label, el("input", { type: "number", name: key, required: true, ...limits })]);
  const start = el("button", { class: "primary" }, "Generate");
  const stop = el("button", { type: "button", disabled: true, onclick: () => running.abort() }, "Stop");
  const form = el("form", { class: "play-form", onsubmit: (event) => (event.preventDefault(), generate()) },
    el("label", { class: "prompt" }, "prompt", prompt),
    el("label", {}, "checkpoint", first), el("label", {}, "beside it", second),
    inputs.map(([, label, input]) => el("label", {}, label, input)),
    el("div", { class: "buttons" }, start, stop));
  const panes = el("div", { class: "panes" });
  let running = new AbortController();

  main.append(head.node, form, surpriseLegend(), panes);
  if (!steps.length) {
    start.disabled = true;
    panes.append(el("p", { class: "soft" }, "This run has kept no checkpoint yet."));
  }

  async function generate() {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    const settings = Object.fromEntries(inputs.map(([key, , input]) => [key, input.valueAsNumber]));
    const request = { run: name, prompt: prompt.value, ...settings };
    const chosen = [first.value, second.value].filter(Boolean).map(Number);
    const made = chosen.map((step) => makePane(step));
    panes.replaceChildren(...made.map((pane) => pane.node));
    stop.disabled = false;
    await Promise.all(made.map((pane, i) => pane.fill({ ...request, step: chosen[i] }, signal)));
    if (running.signal === signal) stop.disabled = true;
  }

  return () => running.abort();
}

/** A place for the text of one checkpoint. */
function makePane(step) {
  const state = el("p", { class: "soft", role: "status" }, "loading the model");
  const tokens = [];
  const others = el("div", { class: "others", hidden: true });
  const list = tokenText(`text of step ${step}`, (index, span) => tell(index, span));
  const node = el("section", { class: "pane" }, el("h2", {}, `step ${whole(step)}`), state,
    el("div", { class: "output" }, list.node, others));
  node.addEventListener("pointerleave", () => (others.hidden = true));
  node.addEventListener("focusout", () => (others.hidden = true));

  /** The ten most likely tokens at a place, below the token that stands there. */
  function tell(index, span) {
    const token = tokens[index];
    if (!token.top?.length) return (others.hidden = true);
    const rows = token.top.map(([text, p]) => {
      const bar = el("span", { class: "share" });
      bar.style.setProperty("--share", p);
      return el("li", { class: text === token.text ? "taken" : null },
        el("span", { class: "mono" }, exactly(text)), bar, el("span", { class: "number" }, percent(p)));
    });
    others.replaceChildren(el("p", {}, el("strong", { class: "mono" }, exactly(token.text)), ` ${percent(token.p)}`,
      token.given && el("span", { class: "soft" }, " given")), el("ol", {}, rows));
    others.hidden = false;
    const space = others.parentElement.clientWidth - others.offsetWidth;
    others.style.left = `${Math.max(0, Math.min(span.offsetLeft, space))}px`;
    others.style.top = `${span.offsetTop + span.offsetHeight + 4}px`;
  }

  async function fill(request, signal) {
    let count = 0;
    const begin = performance.now();
    try {
      await source.play(request, {
        token(token) {
          tokens.push(token);
          count += !token.given;
          const p = typeof token.p === "number" ? token.p : NaN;
          list.add(token.text, -Math.log(p), Number.isNaN(p) ? "nothing before it" : percent(p), token.given);
          state.textContent = `${whole(count)} tokens`;
        },
        error({ message }) {
          throw new Error(message);
        },
        end() {
          state.textContent = `${whole(count)} tokens in ${((performance.now() - begin) / 1000).toFixed(1)} s`;
        },
      }, signal);
    } catch (error) {
      state.textContent = error.name === "AbortError" ? `stopped after ${whole(count)} tokens` : error.message;
      state.classList.toggle("bad", error.name !== "AbortError");
    }
  }
  return { node, fill };
}
