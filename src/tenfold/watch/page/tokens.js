// Text token by token, each coloured by the loss it came with: clear where the model expected it, orange where it was
// surprised. The loss of a token is the negative logarithm of its probability.

import { el } from "./words.js";

const HALF = "\u200a"; // where a token is but half a character there is no text yet, but something to point at
const STRONGEST = 8; // nats of the strongest colour, a probability of 0.03 %

/** How strongly a loss is coloured, from 0 to 1; a loss that is unknown is not. */
export const strength = (loss) => (Number.isFinite(loss) ? Math.max(0, Math.min(1, loss / STRONGEST)) : 0);

/** A token as it can be seen: line feeds are marked. */
export const visible = (text) => text.replaceAll("\n", "⏎\n");

/** A token as a label of one line. */
export const labelOf = (text) =>
  text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +$/, "␣").trim() || "∅";

/** The same with every space marked: two of the likeliest tokens may differ in one. */
export const exactly = (text) => labelOf(text.replaceAll(" ", "␣"));

/** A list of tokens that flows like text. `chosen(index, node)` is called when a token is pointed at, focused or
 * clicked; arrow keys go from one to the next, and only one of them is a stop of the Tab key. */
export function tokenText(label, chosen) {
  const node = el("div", { class: "tokens", role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  let current = 0;

  function choose(index, focus) {
    const spans = node.children;
    if (!spans[index]) return;
    spans[current]?.setAttribute("tabindex", -1);
    spans[current]?.setAttribute("aria-selected", false);
    current = index;
    spans[index].setAttribute("tabindex", 0);
    spans[index].setAttribute("aria-selected", true);
    if (focus) spans[index].focus();
    chosen(index, spans[index]);
  }

  const at = (event) => [...node.children].indexOf(event.target.closest("[role=option]"));
  node.addEventListener("pointerover", (event) => at(event) >= 0 && choose(at(event), false));
  node.addEventListener("click", (event) => at(event) >= 0 && choose(at(event), true));
  node.addEventListener("focusin", (event) => at(event) >= 0 && at(event) !== current && choose(at(event), false));
  node.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: current - 1, ArrowRight: current + 1, ArrowUp: current - 1, ArrowDown: current + 1,
      Home: 0, End: node.children.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(to, node.children.length - 1)), true);
  });

  return {
    node,
    choose: (index) => choose(index, false),
    add(text, loss, description, given = false) {
      const token = el("span", {
        class: `token${given ? " given" : ""}`, role: "option", "aria-selected": false,
        tabindex: node.children.length ? -1 : 0, "aria-label": `${labelOf(text)}: ${description}`,
      }, visible(text) || HALF);
      token.style.setProperty("--surprise", strength(loss));
      node.append(token);
    },
    color(index, loss, description) {
      const token = node.children[index];
      token.style.setProperty("--surprise", strength(loss));
      token.setAttribute("aria-label", `${labelOf(token.textContent.replaceAll("⏎", ""))}: ${description}`);
    },
    clear() {
      node.replaceChildren();
      current = 0;
    },
  };
}

/** What the colours mean. */
export function surpriseLegend() {
  const least = `${(100 * Math.exp(-STRONGEST)).toFixed(2)} %`;
  return el("p", { class: "scale" }, el("span", {}, "expected"), el("span", { class: "ramp", "aria-hidden": "true" }),
    el("span", {}, `surprised: a loss of ${STRONGEST} nats, a probability of ${least}`));
}
