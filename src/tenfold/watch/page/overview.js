// All runs of the folder, as a table that stays up to date; several may be chosen and compared.

import { sparkline } from "./chart.js";
import { source } from "./data.js";
import { ago, badge, el, isNumber, nats, percent, place, runLink, span, standing, whole, write } from "./words.js";

const CALM = 10000; // milliseconds between two readings while the server tells of nothing new
const FILTER_FROM = 9; // runs from which on they can be filtered by name
const AT_ONCE = 200; // rows shown before somebody asks for all
const ORDER = ["running", "crashed", "new", "stopped", "done"];

const rank = (run) => (run.error ? ORDER.length : ORDER.indexOf(run.state));
const dash = (text) => (text === "unknown" ? "–" : text);

// What each column shows of a run, as text or, with `node`, as elements.
const COLUMNS = [
  { name: "state", node: stateOf, key: (run) => run.error ?? run.state },
  { name: "progress", node: progress, key: (run) => `${run.step}/${run.steps}/${left(run)}`, wide: true },
  { name: "loss", text: (run) => nats(run.loss), unit: "nats" },
  { name: "validation", text: (run) => nats(run.val_loss), unit: "nats" },
  { name: "best", text: (run) => nats(run.best_val_loss), unit: "nats" },
  { name: "tokens/s", text: (run) => whole(run.tokens_per_second) },
  { name: "MFU", text: (run) => percent(run.mfu) },
  { name: "reference", node: standingOf, key: (run) => `${run.place}/${run.off}/${run.signs}` },
  { name: "loss so far", node: (run) => sparkline(run.spark ?? []), key: (run) => JSON.stringify(run.spark ?? []) },
];

function stateOf(run) {
  return run.error ? el("span", { class: "bad" }, "unreadable") : badge(run.state);
}

function left(run) {
  if (run.state === "new") return "not begun";
  if (run.state !== "running") return ago(run.updated);
  return isNumber(run.seconds_left) ? `${span(run.seconds_left)} left` : "time left unknown";
}

function progress(run) {
  return [
    el("progress", { max: run.steps || 1, value: run.step ?? 0, "aria-label": `progress of ${run.name}` }),
    el("span", { class: "steps" }, `${whole(run.step ?? 0)} / ${whole(run.steps)}`),
    el("span", { class: "soft" }, left(run)),
  ];
}

function standingOf(run) {
  const { text, kind } = standing(run);
  const signs = run.signs?.length ?? 0;
  const spoke = `⚠ ${signs} sign${signs > 1 ? "s" : ""}`;
  return [el("span", { class: kind }, text), signs > 0 && el("span", { class: "bad" }, spoke)];
}

export async function showOverview(main) {
  const rows = new Map();
  const chosen = new Set();
  let timer = null, reading = false, stopped = false, filter = "", all = false, list = [];

  const body = el("tbody");
  const compare = el("a", { class: "button", "aria-disabled": "true" }, "Compare");
  const hint = el("span", { class: "soft" }, "Choose two runs or more to lay their curves over each other.");
  const search = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "filter runs by name",
    oninput: (event) => { filter = event.target.value.toLowerCase(); arrange(); } });
  const more = el("button", { onclick: () => { all = true; arrange(); } }, "Show all");
  const head = COLUMNS.map(({ name, unit }) => el("th", { scope: "col" }, name, unit && el("small", {}, ` ${unit}`)));
  const table = el("div", { class: "wide" }, el("table", { class: "runs" },
    el("thead", {}, el("tr", {}, source.live && el("th", { scope: "col" }, el("span", { class: "unseen" }, "compare")),
      el("th", { scope: "col" }, "run"), head)), body));
  const empty = el("div", { class: "empty", hidden: true });
  const none = el("p", { class: "soft", role: "status", hidden: true }, "No run has this in its name.");
  const ladders = el("p", { class: "ladders" });
  main.append(el("h1", { tabindex: -1 }, "Runs"), source.live ? el("div", { class: "bar" }, compare, hint, search) : "",
    table, none, more, empty, ladders);

  function pick(name, on) {
    if (on) chosen.add(name);
    else chosen.delete(name);
    const enough = chosen.size > 1;
    write(compare, enough ? `Compare ${chosen.size} runs` : "Compare");
    compare.toggleAttribute("href", enough);
    if (enough) compare.href = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`;
    compare.setAttribute("aria-disabled", !enough);
  }

  function rowOf(run) {
    if (rows.has(run.name)) return rows.get(run.name);
    const cells = COLUMNS.map(({ name, unit, text, wide }) =>
      el("td", { "data-label": unit ? `${name}, ${unit}` : name, class: text ? "number" : wide && "wide-cell" }));
    const box = el("input", { type: "checkbox", "aria-label": `compare ${run.name}`, disabled: Boolean(run.error),
      onchange: () => pick(run.name, box.checked) });
    const preset = el("small", { class: "soft" });
    const name = el("th", { scope: "row" }, el("a", { href: runLink(run.name) }, run.name), preset);
    const node = el("tr", {}, source.live && el("td", { class: "pick" }, box), name, cells);
    const row = { node, cells, preset, keys: [] };
    rows.set(run.name, row);
    return row;
  }

  function arrange() {
    const wanted = list.filter((run) => run.name.toLowerCase().includes(filter));
    const shown = all ? wanted : wanted.slice(0, AT_ONCE);
    place(body, shown.map((run) => rowOf(run).node));
    for (const run of shown) update(run);
    none.hidden = shown.length > 0 || !list.length;
    more.hidden = shown.length === wanted.length;
    write(more, `Show all ${whole(wanted.length)} runs`);
    search.hidden = list.length < FILTER_FROM;
    table.hidden = !list.length;
    compare.parentElement?.toggleAttribute("hidden", list.length < 2);
  }

  function update(run) {
    const row = rowOf(run);
    write(row.preset, run.error ? run.error : run.preset || "no preset");
    COLUMNS.forEach((column, i) => {
      const none = run.error && column.name !== "state"; // nothing is known of one that cannot be read
      const key = none ? "" : column.text ? dash(column.text(run)) : column.key(run);
      if (row.keys[i] === key) return;
      row.keys[i] = key;
      if (none || column.text) write(row.cells[i], key);
      else row.cells[i].replaceChildren(...[column.node(run)].flat().filter(Boolean));
    });
  }

  async function read() {
    if (reading) return;
    reading = true;
    clearTimeout(timer);
    const found = await source.runs().catch(() => null);
    reading = false;
    if (stopped) return;
    if (found) {
      list = found.runs.toSorted((a, b) => rank(a) - rank(b) || (b.updated ?? 0) - (a.updated ?? 0));
      if (source.live) write(document.getElementById("folder"), found.folder);
      empty.hidden = list.length > 0;
      if (!list.length && !empty.children.length) {
        empty.append(el("p", {}, `There is no run in ${found.folder} yet. Start one, and it appears here:`),
          el("pre", {}, "tenfold train demo"));
      }
      const names = new Set(list.map((run) => run.name));
      for (const name of [...rows.keys()].filter((one) => !names.has(one))) {
        rows.delete(name); // what is gone cannot be compared, nor is it chosen if it comes back
        pick(name, false);
      }
      arrange();
    }
    if (source.live) timer = setTimeout(read, CALM);
  }

  await read();
  const close = source.stream({}, { runs: read });
  source.ladders().then((names) => names.length && ladders.append("Ladders of this machine: ",
    ...names.map((name) => el("a", { href: runLink(name, "ladder") }, name)))).catch(() => {});
  return () => { stopped = true; clearTimeout(timer); close(); };
}
