// What stands above each view of a run: its name, its state, and the way to the other views.

import { source } from "./data.js";
import { badge, crumbs, el, runLink } from "./words.js";

/** Heading and tabs of a run; `view` is the one that is open. `update(detail)` writes its state anew. */
export function makeHead(name, detail, view) {
  const state = el("span", { class: "heading-state" });
  const tabs = el("nav", { class: "tabs", "aria-label": "views of this run" });
  const node = el("header", { class: "run-head" },
    source.live && crumbs(),
    el("div", { class: "heading" }, el("h1", { tabindex: -1 }, name), state), tabs);
  let key = "";
  function update(next) {
    const views = [["run", "Curves"], next.film && ["film", "Attention film"],
      source.live && next.checkpoints.length && ["play", "Playground"]].filter(Boolean);
    const fresh = JSON.stringify([next.state, views]);
    if (fresh === key) return;
    key = fresh;
    state.replaceChildren(badge(next.state), next.run.preset ? el("span", { class: "soft" }, next.run.preset) : "");
    tabs.replaceChildren(...views.map(([to, label]) =>
      el("a", { href: runLink(name, to), "aria-current": to === view ? "page" : null }, label)));
  }
  update(detail);
  return { node, update };
}
