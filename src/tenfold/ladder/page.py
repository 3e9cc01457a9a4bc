"""The ladder as one page that needs nothing else: charts, a table, and for each rung what it does and what it did here.
Everything that comes from ladder.json is escaped; the page loads nothing, and says so to the browser."""

import math
from collections.abc import Iterable
from html import escape
from string import Template
from typing import Any

from tenfold.ladder import figures
from tenfold.ladder.figures import Ladder, Rung
from tenfold.ladder.lessons import LESSONS, SOURCES

HEIGHT = 400  # of the curves at least, in pixels
GAP = 15  # between the labels of two curves
STEP_AT, LAST_AT = 11.0, 66.0  # where the first and the last step stand, in per cent of the width; labels follow
HEADINGS = {"×prev": "× before", "×first": "× first"}  # where there is more room than on a terminal

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
$body
</main>
<script>
$script</script>
</body>
</html>
""")

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --wash: #f5f7f9;
  --bar: #9db8dc; --best: #1f5fbf; --first: #57606a; --bad: #b93a32;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --ink: #e4e8ec; --soft: #98a2ad; --line: #2e343b; --wash: #1c2126;
    --bar: #41618c; --best: #79aaf2; --first: #a3acb6; --bad: #ec7a70;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.2rem); line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.015em; }
h2 { font-size: 1.2rem; margin: 3rem 0 .25rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .2rem; }
p { margin: .3rem 0; max-width: 44rem; }
.soft { color: var(--soft); }
.small { font-size: .875rem; }
a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .2em; }
a:hover { text-decoration-color: currentColor; }
:focus-visible { outline: 2px solid var(--best); outline-offset: 2px; border-radius: 3px; }
dl { margin: 0; }
dd { margin: 0; font-variant-numeric: tabular-nums; }
dt { color: var(--soft); font-size: .8125rem; }
.gains { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1rem; margin: 1.75rem 0; }
.gains div { border-top: 2px solid var(--best); padding-top: .5rem; }
.gains dd { font-size: 1.35rem; line-height: 1.3; font-weight: 600; }
.gains small { display: block; font-size: .8125rem; font-weight: 400; color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem 1rem; }
header .facts { margin-top: 1.25rem; }
header .facts div:first-child { grid-column: span 2; }
.facts dd { overflow-wrap: anywhere; }
.stairs { list-style: none; margin: 1rem 0 0; padding: 0; font-size: .9375rem; }
.stairs li {
  display: grid; grid-template-columns: 16rem 1fr 12.5rem; gap: 0 1rem; align-items: center; padding: .18rem 0;
}
.stairs svg { display: block; overflow: visible; }
.stairs .value { font-variant-numeric: tabular-nums; white-space: nowrap; }
.stairs .value b { display: inline-block; min-width: 4.6rem; }
.bar { fill: var(--bar); }
.first .bar { fill: var(--first); }
.best .bar { fill: var(--best); }
.rejected .bar { fill: var(--wash); stroke: var(--soft); stroke-dasharray: 4 3; }
.failed .bar { fill: none; stroke: var(--bad); stroke-dasharray: 4 3; }
.range { fill: var(--ink); opacity: .55; }
.cut { fill: var(--paper); }
.mark-failed { color: var(--bad); }
.mark-rejected, .mark-skipped { color: var(--soft); }
.curves { display: block; margin-top: 1rem; overflow: visible; font-size: 12px; }
.curves text { fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: 1; }
.curve { outline: none; }
.curve polyline { fill: none; stroke: var(--bar); stroke-width: 1.75; }
.curve circle { fill: var(--bar); }
.curve .leader { stroke: var(--soft); opacity: .5; }
.curve.first polyline { stroke: var(--first); stroke-width: 2.25; }
.curve.first circle { fill: var(--first); }
.curve.best polyline { stroke: var(--best); stroke-width: 2.75; }
.curve.best circle { fill: var(--best); }
.curve.first text, .curve.best text { fill: var(--ink); font-weight: 600; }
.curve.rejected polyline { stroke: var(--soft); stroke-dasharray: 4 3; }
.curve.rejected circle { fill: var(--soft); }
.curve.failed polyline { stroke: var(--bad); stroke-dasharray: 4 3; }
.curve.failed circle, .curve.failed text { fill: var(--bad); }
.curves:has(.curve:is(:hover, :focus-visible)) .curve:not(:hover, :focus-visible) { opacity: .18; }
.curve:is(:hover, :focus-visible) polyline { stroke-width: 3.5; }
.curve:is(:hover, :focus-visible) text { fill: var(--ink); font-weight: 600; }
.scroll { overflow-x: auto; margin-top: 1rem; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums;
}
th, td {
  padding: 6px 10px; line-height: 20px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
}
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--paper); }
th:first-child, th:nth-child(2), td.state, td.reason { text-align: left; }
th:first-child { padding-left: 0; }
td.reason { white-space: normal; min-width: 24rem; color: var(--soft); }
tr.best th, tr.best td { font-weight: 600; }
tr.rejected td, tr.skipped th, tr.skipped td { color: var(--soft); }
.beside {
  display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 0 1rem;
  margin-bottom: .6rem;
}
button {
  font: inherit; font-size: .875rem; color: inherit; background: var(--wash); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .8rem; cursor: pointer;
}
details { border-top: 1px solid var(--line); }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: .6rem 0; display: flex; flex-wrap: wrap; gap: .1rem .75rem; align-items: baseline; }
summary::before { content: "▸"; color: var(--soft); width: .8rem; }
details[open] > summary::before { content: "▾"; }
summary b { flex: 1 1 10rem; font-weight: 600; }
summary span { font-variant-numeric: tabular-nums; font-size: .875rem; }
.lesson { padding: 0 0 1.5rem 1.5rem; }
.lesson .facts { margin-top: .5rem; }
.says { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0 2rem; }
pre {
  background: var(--wash); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; margin: .4rem 0;
  overflow-x: auto; font: .8125rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace;
}
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .9em; overflow-wrap: anywhere; }
pre code { font-size: inherit; overflow-wrap: normal; }
footer { margin-top: 3rem; }
@media (max-width: 46rem) {
  main { padding: 1.25rem 1rem 3rem; }
  .gains, .facts { grid-template-columns: 1fr 1fr; }
  .stairs li { grid-template-columns: 1fr auto; padding: .35rem 0; }
  .stairs svg { grid-row: 2; grid-column: 1 / -1; }
  .stairs .value b { min-width: 0; margin-right: .4rem; }
  .lesson { padding-left: 0; }
  .says { grid-template-columns: 1fr; }
  td.reason { min-width: 15rem; }
}
"""

SCRIPT = """\
const folds = [...document.querySelectorAll("details")];
const all = document.getElementById("all");
function follow() {
  const fold = folds.find(fold => "#" + fold.id === location.hash);
  if (fold) { fold.open = true; fold.scrollIntoView(); }
}
if (all) {
  all.hidden = false;
  all.onclick = () => { const open = folds.some(fold => !fold.open); folds.forEach(fold => { fold.open = open; }); };
}
addEventListener("hashchange", follow);
follow();
"""


def html(ladder: Ladder) -> str:
    """The page of a ladder, climbed to the top or not."""
    rungs = ladder.get("rungs") or []
    body = [head(ladder)]
    if figures.measured(ladder):
        body += [staircase(ladder), curves(ladder)]
    body += [table(ladder), lessons(ladder)] if rungs else ["<p>No rung has been measured yet.</p>"]
    body.append(f'<footer class="soft small"><p>{escape(SOURCES)}</p></footer>')
    return PAGE.substitute(title=escape(title(ladder)), style=STYLE, script=SCRIPT, body="\n".join(body))


def text(value: Any) -> str:
    """Anything as escaped text in one line; a dash for nothing."""
    return escape(figures.line(value)) if value not in (None, "") else figures.NONE


def name(rung: Rung) -> str:
    """What a rung is called, escaped."""
    return text(rung.get("title") or rung.get("name"))


def title(ladder: Ladder) -> str:
    """The page's heading, not escaped."""
    preset, kept = figures.line(ladder.get("preset") or "a model"), figures.taken(ladder)
    if len(kept) < 2:
        return f"The ladder of {preset}"
    return f"{preset}: {figures.times(kept[-1].get('speedup'))} times as fast, rung by rung"


def pairs(pairs: Iterable[tuple[str, str]], style: str) -> str:
    """A list of terms with what they are; both are HTML."""
    return f'<dl class="{style}">' + "".join(f"<div><dt>{t}</dt><dd>{d}</dd></div>" for t, d in pairs) + "</dl>"


def head(ladder: Ladder) -> str:
    """The heading: what was gained, on which machine, with what."""
    machine, kept = ladder.get("machine") or {}, figures.taken(ladder)
    count, tokens = figures.number(machine.get("count")), figures.number(ladder.get("tokens_per_step"))
    shape = f"{figures.whole(ladder.get('rows'))} rows of {figures.whole(ladder.get('length'))}"
    unit = ("core" if machine.get("kind") == "cpu" else "device") + ("" if count == 1 else "s")
    facts = [
        ("machine", text(machine.get("described") or machine.get("name"))),
        ("torch", text(machine.get("torch"))),
        ("date", text(ladder.get("date"))),
        ("preset", text(ladder.get("preset"))),
        ("count", f"{count:.0f} {unit}" if count else figures.NONE),
        ("tokens a step", f"{tokens:,.0f} ({shape})" if tokens else figures.NONE),
        ("arithmetic a token", figures.flops(ladder.get("flops_per_token")).replace("OP/s", "OP")),
    ]
    gains = ""
    if len(kept) > 1:
        key, label = figures.of_peak(ladder)
        words = {"MFU": "of the card’s peak rate (MFU)", "matrix": "of the measured matrix rate"}[label]
        rows = {
            "a step": ("seconds_per_step", figures.seconds),
            "tokens/s": ("tokens_per_second", figures.rate),
            words: (key, figures.share),
            "peak memory": ("peak_memory_bytes", figures.memory),
        }
        gains = pairs(
            (
                (label, f"{form(kept[-1].get(key))}<small>from {form(kept[0].get(key))}</small>")
                for label, (key, form) in rows.items()
            ),
            "gains",
        )
    return f"<header><h1>{escape(title(ladder))}</h1>{gains}{pairs(facts, 'facts')}</header>"


def told(rung: Rung) -> str:
    """A rung's figures in a sentence, for whoever points at it."""
    ends = figures.spread(rung, " to ")
    return (
        f"{name(rung)}: {figures.seconds(rung.get('seconds_per_step'))} a step{f' ({ends})' if ends else ''}, "
        f"{figures.rate(rung.get('tokens_per_second'))} tokens/s, "
        f"{figures.times(rung.get('speedup_before'))} times the rung before, "
        f"{figures.times(rung.get('speedup'))} times the first; {figures.WORDS[figures.status(rung)]}"
    )


def mark(rung: Rung) -> str:
    """The status in a word."""
    return f'<span class="mark-{figures.status(rung)}">{figures.WORDS[figures.status(rung)]}</span>'


def bar(rung: Rung, longest: float) -> str:
    """One bar with its spread, `longest` being as wide as there is room."""

    def per_cent(value: Any) -> float:
        return min(100.0, 100 * (figures.number(value) or 0) / longest)

    low, high = map(per_cent, rung["spread"] if figures.spread(rung) else (0, 0))
    cut = rung["seconds_per_step"] > longest
    return (
        f'<svg width="100%" height="18" role="img"><title>{told(rung)}</title>'
        f'<rect class="bar" y="2" height="14" rx="2" width="{per_cent(rung["seconds_per_step"]):.2f}%"/>'
        f'<rect class="range" x="{low:.2f}%" y="8" height="2" width="{max(0, high - low):.2f}%"/>'
        + ('<svg x="95%" overflow="visible"><path class="cut" d="M0 18 8 0h6L6 18z"/></svg>' if cut else "")
        + "</svg>"
    )


def staircase(ladder: Ladder) -> str:
    """Step time as bars, one a measured rung, from the first to the last."""
    longest = figures.longest(ladder)
    rows = []
    for i, rung in enumerate(ladder["rungs"]):
        if not figures.is_measured(rung):
            continue
        said = f"×{figures.times(rung.get('speedup'))}" if figures.status(rung) == "ok" else mark(rung)
        rows.append(
            f'<li class="{figures.kind(ladder, rung)}"><a href="#rung-{i}">{name(rung)}</a>{bar(rung, longest)}'
            f'<span class="value"><b>{figures.seconds(rung["seconds_per_step"])}</b> {said}</span></li>'
        )
    drift = (
        "<p class='soft small'>Speed-ups come from measurements in turn with the rung below, because the machine’s "
        "speed drifts; they need not equal the ratios of these medians.</p>"
        if figures.drifted(ladder)
        else ""
    )
    return (
        "<section><h2>Step time</h2><p class='soft small'>Median time of one step, shorter is better; the thin line "
        "spans the fastest and the slowest. × is the speed-up over the first rung. What is taken stays for the rungs "
        "that follow; what is rejected was slower, what failed trained differently.</p>"
        f"{drift}<ol class='stairs'>{''.join(rows)}</ol></section>"
    )


def curves(ladder: Ladder) -> str:
    """The time of every step, one line a rung, on a logarithmic scale: the first step has the compilation in it."""
    lines = figures.step_lines(ladder)
    if not lines:
        return ""
    low, high = figures.extent(lines)
    longest = max(len(steps) for _, steps in lines)
    height = max(HEIGHT, GAP * len(lines) + 40)

    def x(step: int) -> float:
        return STEP_AT + (LAST_AT - STEP_AT) * step / max(1, longest - 1)

    def y(seconds: float) -> float:
        return height * math.log(high / seconds) / math.log(high / low)

    parts = [
        f'<line class="grid" x1="0" x2="{LAST_AT}%" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="0" y="{y(t) - 4:.1f}">{figures.tick(t)}</text>'
        for t in figures.ticks(low, high)
    ]
    every = max(1, math.ceil(longest / 10))
    parts += [
        f'<text x="{x(i):.2f}%" y="{height + 18}" text-anchor="middle">{i + 1}</text>' for i in range(0, longest, every)
    ]
    places = figures.apart([y(steps[-1]) for _, steps in lines], GAP, height - 4)
    for (rung, steps), place in zip(lines, places, strict=True):
        points = " ".join(f"{x(i):.2f},{y(s):.1f}" for i, s in enumerate(steps))
        dots = "".join(f'<circle cx="{x(i):.2f}%" cy="{y(s):.1f}" r="2.5"/>' for i, s in enumerate(steps))
        end = x(len(steps) - 1)
        parts.append(
            f'<g class="curve {figures.kind(ladder, rung)}" tabindex="0" role="img"><title>{name(rung)}: first step '
            f"{figures.seconds(steps[0])}, last {figures.seconds(steps[-1])}</title>"
            f'<line class="leader" x1="{end + 0.8:.2f}%" x2="{LAST_AT + 7}%" y1="{y(steps[-1]):.1f}" y2="{place:.1f}"/>'
            f'<svg width="100%" height="{height}" viewBox="0 0 100 {height}" preserveAspectRatio="none">'
            f'<polyline vector-effect="non-scaling-stroke" points="{points}"/></svg>{dots}'
            f'<text x="{LAST_AT + 7.5}%" y="{place + 4:.1f}">{text(rung.get("name"))}</text></g>'
        )
    return (
        "<section><h2>Every step</h2><p class='soft small'>Time of each step since the start, on a logarithmic scale. "
        "The first one includes compilation. Point at a line to single it out.</p>"
        f'<svg class="curves" width="100%" height="{height + 26}">{"".join(parts)}</svg></section>'
    )


def table(ladder: Ladder) -> str:
    """All rungs with their figures; those without any tell why across."""
    columns = figures.columns(ladder)
    heads = "".join(f'<th scope="col">{HEADINGS.get(heading, heading)}</th>' for heading in ("rung", "", *columns))
    rows = []
    for i, rung in enumerate(ladder["rungs"]):
        cells = (
            "".join(f"<td>{escape(cell(rung))}</td>" for cell in columns.values())
            if figures.is_measured(rung)
            else f'<td class="reason" colspan="{len(columns)}">{text(rung.get("reason"))}</td>'
        )
        rows.append(
            f'<tr class="{figures.kind(ladder, rung)}">'
            f'<th scope="row"><a href="#rung-{i}">{text(rung.get("name"))}</a></th>'
            f'<td class="state">{mark(rung)}</td>{cells}</tr>'
        )
    peak = {
        "MFU": "MFU is the share of the card’s peak rate for the precision",
        "matrix": "Matrix is the share of the rate that matrix products alone reached in the same run",
    }[figures.of_peak(ladder)[1]]
    return (
        f"<section><h2>All rungs</h2><p class='soft small'>{peak}. Parity is the largest relative difference of the "
        "loss over ten steps on the same rows from the same weights.</p>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="All rungs"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def measures(rung: Rung) -> list[tuple[str, str]]:
    """Every figure of a rung that there is, by name."""
    said = {
        "a step": escape(figures.step_time(rung)),
        "tokens/s": figures.rate(rung.get("tokens_per_second")),
        "over the rung before": "×" + figures.times(rung.get("speedup_before")),
        "over the first": "×" + figures.times(rung.get("speedup")),
        "of the card’s peak (MFU)": figures.share(rung.get("mfu")),
        "of the matrix rate": figures.share(rung.get("of_matrix_rate")),
        "matrix rate": figures.flops(rung.get("matrix_rate")),
        "peak memory": figures.memory(rung.get("peak_memory_bytes")),
        "first step": escape(figures.first_step(rung)) + (" cache" if rung.get("cache") else ""),
        "loss, first and last": losses(rung),
    }
    return [(term, value) for term, value in said.items() if value.strip("×") not in ("", figures.NONE)]


def losses(rung: Rung) -> str:
    """The first and the last loss."""
    found = [value for loss in rung.get("losses") or [] if (value := figures.number(loss)) is not None]
    return f"{found[0]:.4f}, {found[-1]:.4f}" if found else figures.NONE


def parity(rung: Rung) -> str:
    """What was measured of a rung's accuracy, in a sentence, not escaped."""
    if (difference := figures.number(rung.get("parity"))) is None:
        return ""
    return (
        f" Measured here: losses at most {figures.relative(difference)} apart from those of "
        f"{figures.line(rung.get('parity_with'))}, relatively, over ten steps; up to "
        f"{figures.relative(rung.get('tolerance'))} is accepted."
    )


def lessons(ladder: Ladder) -> str:
    """A fold-out for each rung: what it does, how it is written, what it did here."""
    return (
        '<section><div class="beside"><h2>What each rung does</h2>'
        '<button id="all" type="button" hidden>Open or close all</button></div>'
        + "".join(lesson(i, rung) for i, rung in enumerate(ladder["rungs"]))
        + "</section>"
    )


def lesson(i: int, rung: Rung) -> str:
    """One fold-out."""
    how, known = figures.status(rung), LESSONS.get(str(rung.get("name")))
    brief = f"<span>{figures.seconds(rung['seconds_per_step'])}</span>" if figures.is_measured(rung) else ""
    brief += f"<span>×{figures.times(rung.get('speedup_before'))}</span>" if how == "ok" else mark(rung)
    parts = []
    if rung.get("reason"):
        parts.append(f'<p class="mark-{how}"><b>{figures.WORDS[how].capitalize()}:</b> {text(rung["reason"])}</p>')
    if known:
        parts.append(f"<p>{escape(known.what)}</p><pre tabindex='0'><code>{escape(known.code)}</code></pre>")
    if rung.get("change"):
        parts.append(f"<p class='soft small'>In Tenfold: <code>{text(rung['change'])}</code></p>")
    if known:
        says = {
            "When it helps": known.helps,
            "When it does not": known.hurts,
            "What it costs in accuracy": known.accuracy + parity(rung),
        }
        told = "".join(f"<div><h3>{heading}</h3><p>{escape(words)}</p></div>" for heading, words in says.items())
        parts.append(f'<div class="says">{told}</div>')
    if found := measures(rung):
        parts.append(f"<h3>Measured here</h3>{pairs(found, 'facts')}")
    return (
        f'<details id="rung-{i}"><summary><b>{name(rung)}</b>{brief}</summary>'
        f'<div class="lesson">{"".join(parts)}</div></details>'
    )
