// The ladder's own page, in a frame.

import { crumbs, el } from "./words.js";

export function showLadder(main, name) {
  const frame = el("iframe", { class: "ladder", src: `/ladder/${encodeURIComponent(name)}`, title: `ladder ${name}` });
  main.append(crumbs(), el("h1", { class: "unseen", tabindex: -1 }, `Ladder ${name}`), frame);
  return () => {};
}
