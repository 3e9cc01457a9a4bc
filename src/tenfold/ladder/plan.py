"""Plans a training before it is started: time, cost and memory, from figures measured here or published elsewhere. No
torch here: the machine that is planned for need not be at hand."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tenfold.data.split import Split, split
from tenfold.errors import ConfigError
from tenfold.hardware import Hardware
from tenfold.model.config import ModelConfig
from tenfold.reference.cards import Card, Figure, Price, figures, peak, prices
from tenfold.run import Run
from tenfold.training.speed import resolve

GPT2 = ModelConfig()  # the model, in rows of 1,024 tokens, that published speeds are of
LENGTH = 1024
EFFICIENCY = 0.4  # share of the peak rate that model FLOPs reach, where no speed of the card was published
REACHED = "published PyTorch runs reach 0.31 to 0.50 on A100s and 0.39 on H100s"  # what that rests on, throughput.csv
SHARE = 0.9  # of a device's memory that a step may take; the rest is for the allocator and the libraries
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}  # of an element that autocast makes
CHUNK = 1024  # tokens whose logits the chunked loss holds: model.head.CHUNK
COLUMNS = 100


@dataclass(frozen=True)
class Memory:
    """What a training takes of a device, in bytes."""

    capacity: int
    """Of the device, as its maker counts it."""
    state: int
    """Gradients, weights, moments and copies of the weights in a half precision; of all but the first FSDP's share."""
    blocks: int
    """Activations of a row."""
    logits: int
    """Of a row; 0 where the loss never has them all in memory."""

    @property
    def row(self) -> int:
        """Of one row."""
        return self.blocks + self.logits

    @property
    def room(self) -> int:
        """That a step may take."""
        return int(SHARE * self.capacity)

    @property
    def rows(self) -> int:
        """Rows that fit at a time; 0 if not even one does."""
        return max(0, (self.room - self.state) // self.row)


@dataclass(frozen=True)
class Plan:
    """What a training will take."""

    run: Run
    """With nothing left open in its speed."""
    device: str
    count: int
    rates: tuple[float, float]
    """Tokens a second of one device, the least and the most."""
    basis: tuple[str, ...]
    """What the rates rest on, with sources."""
    mfu: tuple[float, float] | None
    """Share of the device's peak that the rates are."""
    hours: tuple[float, float]
    cost: tuple[float, float] | None
    """US dollars; None where there is no price."""
    prices: tuple[Price, ...]
    memory: Memory
    split: Split


def memory_of(run: Run, capacity: int, count: int) -> Memory:
    """What a settled run takes on each of `count` devices with so many bytes.

    Korthikanti et al. 2022 (equation 2) count 34 bytes a token, layer and unit of width with 16-bit activations and a
    fused attention kernel. Two are dropout masks, which this model lacks; four more are here because the residual
    stream, which the norms read, stays fp32. Of the logits there are at once, in fp32, the log-probabilities, their
    gradient and the logits' own.
    """
    model, speed, length = run.model, run.speed, run.recipe.length
    size = BYTES[speed.precision]
    weights = model.parameters + (model.embedding_rows - model.vocab) * model.width
    sharded = speed.parallel == "fsdp"
    state = weights * (4 + 8 + (size if size < 4 else 0)) // (count if sharded else 1)  # weight, two moments, copy
    state += 4 * weights  # gradients, which FSDP too keeps whole from micro-step to micro-step
    # a token in a block: what the norms read, what they make, queries, keys, values, attention's result, the MLP's
    # hidden units before and after GELU; row blocks of attention keep their half of the square and the result twice
    kept = 2 * 4 * model.width + (2 + 3 + 1 + 4 + 4) * size * model.width
    kept += (model.heads * length // 2 + model.width) * size if speed.attention == "rows" else 0
    recomputed = 4 * model.width * model.layers + kept  # the blocks' inputs, and one block at a time
    logits = 12 * length * model.embedding_rows
    if speed.loss != "plain":  # some logits at a time, and the head's gradient
        state += CHUNK * model.embedding_rows * size + 4 * model.embedding_rows * model.width
    return Memory(
        capacity=capacity,
        state=state,
        blocks=length * (recomputed if speed.recompute == "blocks" else model.layers * kept),
        logits=logits if speed.loss == "plain" else 0,
    )


def closeness(figure: Figure, card: Card) -> tuple[int, int, int]:
    """How near a published figure is to what is planned; less is nearer: PyTorch before llm.c, this card before its
    chip, compiled with FlashAttention before unknown before not."""
    ways = (figure.compile, figure.flash)
    lacking = 2 if "no" in ways else 0 if ways == ("yes", "yes") else 1
    return ("pytorch", "llm.c").index(figure.program), int(figure.card != card.name), lacking


def published(card: Card, precision: str) -> tuple[Figure, ...]:
    """The published speeds of GPT-2 124M that match a card best, slowest first; none where there are none. bf16 and
    fp16 count as one."""
    half = ("bf16", "fp16")
    dtypes = half if precision in half else (precision,)
    fitting = [
        f
        for f in figures()
        if f.card in (card.name, card.name.split()[0])
        and f.program != "other"
        and f.dtype in dtypes
        and f.length == LENGTH
    ]
    nearest = min((closeness(f, card) for f in fitting), default=None)
    return tuple(sorted((f for f in fitting if closeness(f, card) == nearest), key=lambda f: f.tokens_per_second))


def rated(card: Card, run: Run, efficiency: float | None = None) -> tuple[tuple[float, float], tuple[str, ...]]:
    """Tokens a second of one card, the least and the most, and what that rests on: published speeds, scaled by FLOPs a
    token, or, where there are none or an efficiency is given, that share of the peak rate."""
    precision, flops = run.speed.precision, run.model.flops(run.recipe.length)
    again = run.speed.recompute == "blocks"
    slower = 3 / 4 if again else 1.0  # a second forward, half as much work as the backward
    found = () if efficiency else published(card, precision)
    if found:
        scale = GPT2.flops(LENGTH) / flops * slower
        why = f"{flops / 1e9:.2f} GFLOP a token{' and recomputed blocks' * again}"
        scaled = "" if scale == 1 else f", times {scale:.3f} for {why}"
        rates = (found[0].tokens_per_second * scale, found[-1].tokens_per_second * scale)
        return rates, tuple(f"{told(f)}{scaled}" for f in found)
    top = peak(card, precision)
    if top is None:
        raise ConfigError(
            f"the table has no {precision} peak rate{'' if efficiency else ' and no published speed'} of {card.name}; "
            "give another --speed.precision, leave --efficiency out, or run `tenfold tune` on one"
        )
    share = efficiency or EFFICIENCY
    rate = share * top / flops * slower
    why = "as given" if efficiency else f"an estimate: {REACHED}"
    notes = (f"the card: {card.notes}",) if card.notes else ()
    basis = f"{share:g} of the {precision} peak of {top / 1e12:g} TFLOP/s ({why}); the peak: {card.source}"
    basis += "; recomputed blocks take 4/3 of the time" if again else ""
    return (rate, rate), (basis, *notes)


def told(figure: Figure) -> str:
    """A published figure in one line."""
    setting = ", ".join(
        filter(None, (figure.gpu, f"{figure.gpus} GPU{'s' * (figure.gpus > 1)}", figure.dtype, figure.extra))
    )
    return f"{figure.tokens_per_second:,.0f} tokens/s a GPU: {setting} ({figure.source}; {figure.kind})"


def hardware_of(card: Card) -> Hardware:
    """The machine that a card would be in, with a compiler and what else belongs to it."""
    kind = "mps" if card.vendor == "Apple" else "cuda"
    return Hardware(
        kind,
        card.name,
        memory_bytes=int(card.memory_gb * 1e9),
        capability=card.capability,
        native_bf16=card.native_bf16,
        hip=card.vendor == "AMD",
        triton=True,
        cudnn=True,
    )


def plan_card(run: Run, card: Card, count: int = 1, efficiency: float | None = None) -> Plan:
    """The plan of a run, whose vocabulary is known, on `count` cards of the table. ConfigError for a count or an
    efficiency that cannot be, and where not even one row fits, or not as many as speed.rows asks for."""
    if efficiency is not None and not 0 < efficiency <= 1:
        raise ConfigError(f"--efficiency {efficiency}: give a share of the peak rate above 0 and up to 1, such as 0.35")
    hardware = hardware_of(card)
    known = settled(run, hardware, count)
    return planned(known, hardware, count, *rated(card, known, efficiency), fixed=run.speed.rows)


def plan_here(run: Run, hardware: Hardware, count: int = 1, measured: float | None = None, source: str = "") -> Plan:
    """The plan of a run on this machine: from `measured`, tokens a second of one device, which `source` says where they
    come from; where nothing was measured, from the table if it has this card, else ConfigError."""
    known, rows = settled(run, hardware, count), run.speed.rows
    if measured is not None:
        return planned(known, hardware, count, (measured, measured), (source or "measured on this machine",), rows)
    nothing = f"nothing was measured here (`tenfold tune {run.preset}` does)"
    if hardware.card is None:
        raise ConfigError(f"{nothing}, and the table has no {hardware.name}; do that first, or name a card with --gpu")
    rates, basis = rated(hardware.card, known)
    basis = (f"{nothing}, so the table's figures of {hardware.card.name}:", *basis)
    return planned(known, hardware, count, rates, basis, rows)


def settled(run: Run, hardware: Hardware, count: int) -> Run:
    """The run with nothing left open in its speed."""
    if count < 1:
        raise ConfigError(f"--count {count}: give at least 1")
    return replace(run, speed=resolve(run.speed, run.model, run.recipe, hardware, count)[0])


def planned(
    run: Run,
    hardware: Hardware,
    count: int,
    rates: tuple[float, float],
    basis: tuple[str, ...],
    fixed: int | Literal["auto"],
) -> Plan:
    """The plan of a settled run on devices of these rates; `fixed` are the rows a device that were asked for."""
    recipe, card = run.recipe, hardware.card
    memory = memory_of(run, hardware.memory_bytes, count)
    least_rows = 1 if fixed == "auto" else fixed
    if memory.rows < least_rows:
        raise ConfigError(too_big(run, hardware, count, least_rows))
    least, most = rates
    hours = tuple(recipe.steps * recipe.targets / rate / count / 3600 for rate in (most, least))
    paid = tuple(price for price in prices() if card and price.card == card.name)
    cheap, dear = min((p.low for p in paid), default=0), max((p.high for p in paid), default=0)
    top, flops = hardware.peak(run.speed.precision), run.model.flops(recipe.length)
    assert isinstance(run.speed.rows, int)
    return Plan(
        run=run,
        device=card.name if card else hardware.name,
        count=count,
        rates=rates,
        basis=basis,
        mfu=(least * flops / top, most * flops / top) if top else None,
        hours=(hours[0], hours[1]),
        cost=(hours[0] * count * cheap, hours[1] * count * dear) if paid else None,
        prices=paid,
        memory=memory,
        split=split(recipe.rows, recipe.length, count, min(memory.rows, run.speed.rows)),
    )


def too_big(run: Run, hardware: Hardware, count: int, rows: int) -> str:
    """One line for a run of which so many rows do not fit a device: by how much, and what would help."""

    def needed(devices: int = count, **speed: str) -> int:
        memory = memory_of(replace(run, speed=replace(run.speed, **speed)), hardware.memory_bytes, devices)  # type: ignore[arg-type]
        return memory.state + rows * memory.row

    memory = memory_of(run, hardware.memory_bytes, count)
    sharded = next((n for n in (2, 4, 8, 16, 32, 64) if needed(n, parallel="fsdp") <= memory.room), None)
    ways = {
        "fewer --speed.rows": 0 < memory.rows < rows,
        "--speed.recompute blocks": needed(recompute="blocks") <= memory.room,
        f"--speed.parallel fsdp on {sharded} of them": sharded,
        "a shorter --recipe.length": memory.state < memory.room,
        f"a card with {math.ceil(needed() / SHARE / 1e9)} GB": True,
    }
    return (
        f"{run.preset} needs {needed() / 1e9:.1f} GB a device at {rows} row{'s' * (rows > 1)} of {run.recipe.length}, "
        f"{needed() - memory.room:,} bytes more than the {memory.room / 1e9:.1f} GB that a step may take of a "
        f"{hardware.name}; use {', or '.join(way for way, helps in ways.items() if helps)}"
    )


def between(pair: Sequence[float], form: str) -> str:
    """A range in words; one number where its ends are equal in print."""
    low, high = (format(value, form) for value in pair)
    return low if low == high else f"{low} to {high}"


def as_text(plan: Plan) -> str:
    """A plan for the terminal."""
    recipe, speed, memory, laid = plan.run.recipe, plan.run.speed, plan.memory, plan.split
    taken = memory.state + laid.micro * memory.row
    mfu = f", {between([100 * m for m in plan.mfu], '.0f')} % of the {speed.precision} peak" if plan.mfu else ""
    lines = [
        ("training", f"{recipe.steps * recipe.targets:,} tokens: {recipe.steps:,} steps of {recipe.targets:,}"),
        ("speed", f"{between(plan.rates, ',.0f')} tokens/s a device in {speed.precision}{mfu}"),
        ("time", f"{between(plan.hours, ',.1f')} hours; evaluation and exchange between devices are not counted"),
        ("cost", f"{between(plan.cost, ',.2f')} US dollars" if plan.cost else "unknown: no price in the table"),
        (
            "memory",
            f"{taken / 1e9:.1f} of {memory.capacity / 1e9:.0f} GB a device: {memory.state / 1e9:.1f} for weights, "
            f"gradients and moments, {memory.row / 1e9:.2f} a row, {memory.logits / 1e9:.2f} of it logits",
        ),
        (
            "rows",
            f"{laid.micro} a device at a time, {laid.accum} times a step: {laid.slots} slots for {recipe.rows} rows",
        ),
        *(("rests on", line) for line in plan.basis),
        *(
            ("price", f"{between((p.low, p.high), 'g')} dollars a GPU-hour, {p.kind}, {p.date} ({p.source})")
            for p in plan.prices
        ),
    ]
    wrapped = (
        textwrap.fill(text, COLUMNS, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12) for name, text in lines
    )
    return "\n".join((f"{plan.run.preset} on {plan.count} x {plan.device}", *wrapped))
