// Where everything shown comes from: the server that `tenfold watch` started or, in a report, the page itself.
//
// A report is this page in one file: style.css in a <style>, the modules joined into one <script type="module">, each
// after those that it imports, without their import statements and without the word `export` (no two modules share a
// name at their top level), and the data in <script type="application/json" id="report">,
// in which every "<" is written as \u003c:
//   { "format": 1,
//     "made": "2026-01-31",                                       when, and what of the film was left out, as text
//     "runs": {...},                                              as GET /api/runs gives it
//     "run": { NAME: {...} },                                     as /api/runs/NAME
//     "series": { NAME: {...} },                                  as /api/runs/NAME/series
//     "samples": { NAME: { STEP: [text, ...] } },
//     "film": { NAME: {...} },                                    as /api/runs/NAME/film, with the steps it holds
//     "frames": { NAME: { STEP: "base64 of the snapshot's file" } } }

const report = JSON.parse(document.getElementById("report")?.textContent ?? "null");
const part = encodeURIComponent;
const AGAIN = 1000; // milliseconds until a server that went away is asked again

let told = () => {};

/** Calls `tell(there, why)` when the server went away or came back; `why` is what it says, if it refuses. */
export function onConnection(tell) {
  told = tell;
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name !== "AbortError") told(false);
    throw error;
  }
  told(true);
  if (!answer.ok) throw new Error(await said(answer));
  return answer;
}

/** What the server says of an error, or its number. */
async function said(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error ?? `the server answered ${answer.status}`;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

/** Why the server refuses a stream, if it does. */
async function refusal(address) {
  try {
    const answer = await fetch(address);
    if (!answer.ok) return await said(answer);
    await answer.body.cancel();
  } catch {} // it is not there
}

const json = async (path) => (await ask(path)).json();

/** A snapshot's bytes, inflated. */
async function inflate(stream) {
  return new Uint8Array(await new Response(stream.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
}

/** Follows runs from byte offsets on ({name: offset}); `on` has functions for records, rewind, replaced, gone, runs and
 * `open`. The browser reconnects by itself where it was; calling what this returns ends it. */
function stream(offsets, on) {
  let events, timer, left = false;
  const open = () => {
    const names = Object.keys(offsets);
    const at = names.map((name) => offsets[name]).join(",");
    events = new EventSource(`/api/stream?runs=${names.map(part).join(",")}&offsets=${at}`);
    events.onopen = () => (told(true), on.open?.());
    events.onerror = async () => {
      if (events.readyState !== EventSource.CLOSED) return told(false);
      const why = await refusal(events.url); // the browser gave up
      if (left) return;
      told(false, why);
      timer = setTimeout(open, AGAIN);
    };
    for (const kind of ["records", "rewind", "replaced", "gone", "runs"]) {
      events.addEventListener(kind, (event) => {
        const content = event.data ? JSON.parse(event.data) : {};
        if (kind === "records") offsets[content.run] = content.offset;
        on[kind]?.(content);
      });
    }
  };
  open();
  return () => ((left = true), clearTimeout(timer), events.close());
}

/** Generates text; `on` has functions for token, end and error. Aborting the signal stops it. */
async function play(request, on, signal) {
  const answer = await ask("/api/play", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal,
  });
  let text = "";
  for await (const piece of pieces(answer.body.pipeThrough(new TextDecoderStream()))) {
    const blocks = (text + piece).split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
      if (field("event")) on[field("event")]?.(JSON.parse(field("data") || "{}"));
    }
  }
}

/** What arrives through a stream; not every browser lets one loop over it. */
async function* pieces(readable) {
  const reader = readable.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}

const SERVER = {
  live: true,
  runs: () => json("/api/runs"),
  run: (name) => json(`/api/runs/${part(name)}`),
  series: (name, points = 1200) => json(`/api/runs/${part(name)}/series?points=${points}`),
  samples: (name, step) => json(`/api/runs/${part(name)}/samples/${step}`),
  film: (name) => json(`/api/runs/${part(name)}/film`),
  frame: async (name, step) => inflate((await ask(`/api/runs/${part(name)}/film/${step}`)).body),
  compare: (names) => json(`/api/compare?runs=${names.map(part).join(",")}`),
  ladders: async () => (await json("/api/ladders")).ladders,
  stream,
  play,
};

const held = async (value) => {
  if (value === undefined) throw new Error("this report does not hold it");
  return value;
};

const REPORT = {
  live: false,
  made: report?.made,
  runs: () => held(report.runs),
  run: (name) => held(report.run[name]),
  series: (name) => held(report.series[name]),
  samples: async (name, step) => ({ step, texts: await held(report.samples[name]?.[step]) }),
  film: (name) => held(report.film[name]),
  frame: async (name, step) => {
    const packed = Uint8Array.from(atob(await held(report.frames[name]?.[step])), (letter) => letter.charCodeAt(0));
    return inflate(new Blob([packed]).stream());
  },
  compare: () => held(undefined),
  ladders: async () => [],
  stream: () => () => {},
};

export const source = report ? REPORT : SERVER;
