// The way from an address to a view. A view is a function (element, ...names) that fills the element and returns how
// to end it.

import { showCompare } from "./compare.js";
import { onConnection, source } from "./data.js";
import { showFilm } from "./film.js";
import { showLadder } from "./ladder.js";
import { showOverview } from "./overview.js";
import { showPlay } from "./play.js";
import { showRun } from "./run.js";
import { el, write } from "./words.js";

const VIEWS = {
  "": showOverview, run: showRun, compare: showCompare, film: showFilm, play: showPlay, ladder: showLadder,
};
const AWAY = "The server does not answer. What was read is still shown; this page goes on by itself once it is back.";

const main = document.getElementById("main");
const notice = document.getElementById("notice");
let visit = 0, leave = () => {};

async function go() {
  const mine = ++visit;
  leave();
  leave = () => {};
  const [, view = "", names = ""] = location.hash.split("/");
  const given = names.split(",").filter(Boolean).map(decode);
  const page = el("div", { class: `view view-${VIEWS[view] ? view || "overview" : "none"}` });
  document.title = [given.join(", "), "Tenfold"].filter(Boolean).join(" · ");
  main.setAttribute("aria-busy", true);
  try {
    if (!VIEWS[view]) throw new Error("There is no such page here.");
    const end = await VIEWS[view](page, ...given);
    if (mine !== visit) return end();
    leave = end;
  } catch (error) {
    if (mine !== visit) return;
    page.replaceChildren(el("h1", { tabindex: -1 }, given.join(", ") || "Not found"),
      el("p", { class: "bad" }, error.message),
      el("p", {}, el("a", { href: "#/" }, "All runs"), " ", el("button", { onclick: go }, "Try again")));
  }
  main.replaceChildren(page);
  main.removeAttribute("aria-busy");
  if (mine > 1) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

onConnection((there, why) => {
  notice.hidden = there;
  write(notice, there ? "" : why ? `The server refuses: ${why}.` : AWAY);
});
if (!source.live) {
  document.body.classList.add("report");
  write(document.getElementById("folder"), `report of ${source.made ?? "an unknown day"}`);
  const runs = (await source.runs()).runs;
  if (!location.hash && runs.length === 1) history.replaceState(null, "", `#/run/${encodeURIComponent(runs[0].name)}`);
}
addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => (event.preventDefault(), main.focus()));
go();
