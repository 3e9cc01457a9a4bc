// Elements, and numbers in words: what every view writes with. Text from files enters the page as text nodes only.

const SVG = "http://www.w3.org/2000/svg";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** An element with attributes, listeners (`onclick` and so on) and children; strings become text. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for an element of a drawing. */
export function mark(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

/** Text of an element, touched only where it changed, so that nothing is laid out in vain. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A group of radio buttons that looks like one control; `changed` is told the chosen value. */
export function choice(legend, options, value, changed) {
  const group = `choice-${legend.replace(/\W/g, "-")}`;
  return el("fieldset", { class: "choice" }, el("legend", {}, legend), Object.entries(options).map(([key, label]) =>
    el("label", {}, el("input", {
      type: "radio", name: group, value: key, checked: key === String(value), onchange: () => changed(key),
    }), el("span", {}, label))));
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A form that says "unknown" of what is no number. */
const known = (form) => (value) => (isNumber(value) ? form(value) : "unknown");

export const whole = known((value) => WHOLE.format(value));
export const nats = known((value) => value.toFixed(4));
export const percent = known((value) => `${(100 * value).toFixed(Math.abs(value) < 0.0995 ? 2 : 1)} %`);
export const figure = known((value) =>
  value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)
    ? String(+value.toPrecision(4))
    : (+value.toPrecision(3)).toExponential());
export const many = known((value) => inUnits(value, 1000, ["", " k", " M", " B", " T"]));
export const bytes = known((value) => inUnits(value, 1000, [" B", " kB", " MB", " GB", " TB"]));

function inUnits(value, base, units) {
  let at = 0;
  while (Math.abs(value) >= base * 0.9995 && at < units.length - 1) [value, at] = [value / base, at + 1];
  return `${+value.toPrecision(3)}${units[at]}`;
}

/** A span of time in its two largest units. */
export const span = known((seconds) => {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = Math.round(seconds);
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  const [[size, unit], next] = [units[first], units[first + 1]];
  const rest = next && Math.floor((whole % size) / next[0]);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${next[1]}` : ""}`;
});

/** When something was, for people: how long ago on the same day, else its date. */
export function ago(time) {
  if (!isNumber(time)) return "unknown";
  const past = Date.now() / 1000 - time;
  return past < 86400 ? `${span(Math.max(0, past))} ago` : new Date(time * 1000).toISOString().slice(0, 10);
}

/** A value of run.json in words. */
export function plain(value) {
  if (value === null || value === undefined) return "unknown";
  if (value === "") return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(plain).join(" ") || "none";
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : figure(value);
  return typeof value === "string" && value.trim() ? value : JSON.stringify(value);
}

/** How each state looks and reads: the mark tells it without its colour. */
export const STATES = { running: "●", done: "✓", stopped: "■", crashed: "✕", new: "○" };

export function badge(state) {
  return el("span", { class: `state state-${state in STATES ? state : "new"}` },
    el("span", { "aria-hidden": "true" }, STATES[state] ?? "?"), ` ${state ?? "unknown"}`);
}

/** Where a run stands against its reference band. */
export function standing(summary) {
  if (!summary.place) return { text: "no curve", kind: "soft" };
  if (summary.place === "inside") return { text: "✓ inside the band", kind: "good" };
  return { text: `${summary.off ? "▲" : "△"} ${summary.place} the band`, kind: summary.off ? "bad" : "soft" };
}

/** The way back to all runs. */
export const crumbs = () => el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Runs"));

/** Children of an element, put in anew only where they are others. */
export function place(node, children) {
  const same = children.length === node.children.length && children.every((child, i) => child === node.children[i]);
  if (!same) node.replaceChildren(...children);
}

export const runLink = (name, view = "run") => `#/${view}/${encodeURIComponent(name)}`;
