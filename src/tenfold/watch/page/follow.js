// Runs with their series, kept up to date while they train.

import { source } from "./data.js";

const NOT_SERIES = new Set(["step", "time"]);
const FRESH = 4000; // milliseconds between two readings of what is not in the stream: state, time left, samples

/** Loads runs and follows them. `changed()` is called when anything is new, once a frame at most; `runs[name]` has
 * `detail`, as the server gives it, `series`, `tokensPerStep` and `gone`. Call `stop` in the end. */
export async function follow(names, changed) {
  const runs = {}, offsets = {};
  let timer = null, frame = 0, stopped = false;

  const load = async (name) => {
    const [detail, figures] = await Promise.all([source.run(name), source.series(name)]);
    runs[name] = { detail, series: figures.series, tokensPerStep: figures.tokens_per_step, gone: false };
    offsets[name] = figures.offset;
  };
  const tell = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (!stopped) changed();
    });
  };
  const refresh = () => {
    timer ??= setTimeout(async () => {
      timer = null;
      await Promise.allSettled(names.map(async (name) => (runs[name].detail = await source.run(name))));
      tell();
    }, FRESH);
  };
  const on = {
    records: ({ run, records }) => {
      for (const record of records) absorb(runs[run], record);
      tell();
      refresh();
    },
    rewind: ({ run, step }) => (rewind(runs[run], step), tell(), refresh()),
    replaced: () => dispatchEvent(new Event("hashchange")), // another run by this name: the view begins anew
    gone: ({ run }) => ((runs[run].gone = true), tell()),
    runs: refresh,
    open: refresh,
  };
  await Promise.all(names.map(load));
  const close = source.stream(offsets, on);
  return { runs, stop: () => ((stopped = true), clearTimeout(timer), close()) };
}

/** Takes one record into a run's series, events and summary. */
function absorb(run, record) {
  const { detail, series } = run;
  for (const [key, value] of Object.entries(record)) {
    if (NOT_SERIES.has(key) || !(typeof value === "number" || value === null)) continue;
    (series[key] ??= []).push([record.step, record.time, value]);
    if (key in detail.summary) detail.summary[key] = value;
  }
  if (record.event) detail.events.push(record);
  Object.assign(detail.summary, { step: record.step, updated: record.time });
}

/** Takes back everything from a step on. */
function rewind(run, step) {
  for (const [key, points] of Object.entries(run.series)) run.series[key] = points.filter(([at]) => at < step);
  run.detail.events = run.detail.events.filter((event) => event.step < step);
}
