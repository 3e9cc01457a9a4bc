"""The claims about the model: it is GPT-2, by any kernel, with a cache, and after it went elsewhere and back."""

import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenfold.data.tokenizer import Bytes
from tenfold.exchange import compare
from tenfold.exchange.exporting import export
from tenfold.exchange.huggingface import turned, whole_weights
from tenfold.exchange.sources import open_source
from tenfold.exchange.weights import canonical, model_of
from tenfold.generate import generate
from tenfold.hardware import FEATURES
from tenfold.model import head
from tenfold.model.attention import KERNELS
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT
from tenfold.training.speed import HALF
from tenfold.verify.case import BF16, EXACT, FP16, LOGITS, SUM, Case, by_norm, each, flat, largest, of_largest, worst
from tenfold.verify.lab import MODEL, Lab, lively

COMPARED = ("logits, relative to the largest", "loss", "gradients, by norm")  # with transformers
DTYPES = (("fp32", torch.float32, SUM), ("bf16", torch.bfloat16, BF16), ("fp16", torch.float16, FP16))
LENGTHS = ((200, 200), (4, 200))  # queries and keys: more than one block of the kernel `rows`; a few after a cache
PARTS = {"one token at a time": [1] * MODEL.context, "1, 7, 24 and 32 tokens at a time": [1, 7, 24, 32]}
CONTINUED = 100  # tokens, more than the context holds
WIDTH, ROWS = 768, 50304  # of GPT-2's head


def transformers_missing() -> str | None:
    """Why transformers cannot be compared with."""
    return None if find_spec("transformers") else "transformers is not installed; pip install transformers"


def transformers(lab: Lab) -> Iterator[Case]:
    """The model is transformers' GPT-2: the same from the same weights and tokens."""
    for index, what in enumerate(COMPARED):
        measure = partial(to_transformers, lab.world.device, index)
        yield Case(f"ours, and transformers': {what}", SUM, measure, not_here=transformers_missing())


def to_transformers(device: torch.device, index: int) -> float:
    """How far one of COMPARED is from transformers'."""
    draw = torch.Generator().manual_seed(0)
    with compare.quiet():
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes: dict[str, Any] = {"n_layer": MODEL.layers, "n_head": MODEL.heads, "n_embd": MODEL.width}
        theirs = GPT2LMHeadModel(GPT2Config(vocab_size=MODEL.vocab, n_positions=MODEL.context, **sizes)).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():  # norms and biases that matter, and logits that differ widely
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw) + (parameter.dim() == 1))
        ours = GPT(MODEL)
        ours.load_state_dict(as_ours(theirs.state_dict()))
        tokens = torch.randint(MODEL.vocab, (4, MODEL.context), generator=draw).to(device)
        want = theirs.to(device)(tokens, labels=tokens)
    x, y = tokens[:, :-1], tokens[:, 1:]
    loss = ours.to(device)(x, y) / y.numel()
    return (
        lambda: of_largest(ours(x).detach(), want.logits[:, :-1].detach()),
        lambda: each(loss.detach(), want.loss.detach()),
        lambda: by_norm(flat(gradients(ours, loss)), flat(as_ours(gradients(theirs, want.loss)))),
    )[index]()


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of a loss by each parameter."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def as_ours(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers' model, or their gradients, as our model has them."""
    return canonical({name: turned(name, tensor) for name, tensor in tensors.items()}, MODEL, "transformers' model")


def attention(lab: Lab) -> Iterator[Case]:
    """Every attention kernel is the naive one, for as many queries as keys and for few."""
    for name, (short, dtype, bound) in product(KERNELS, DTYPES):
        if (name, short) == ("naive", "fp32") or (short == "fp32" and name in HALF):
            continue
        needed = (name, short) if short == "bf16" else (name,)  # fp16 lacks nothing but speed
        reasons = (lab.hardware.lacks(feature) for feature in needed if feature in FEATURES)
        what = f"{name} in {short}, and naive in fp32: result and gradients, by norm"
        measure = partial(kernel, name, dtype, lab.world.device)
        yield Case(what, bound, measure, not_here=next(filter(None, reasons), None))


def kernel(name: str, dtype: torch.dtype, device: torch.device) -> float:
    """How far a kernel in `dtype` is from the naive one, on values that `dtype` holds."""
    pairs = (
        zip(
            with_gradients(name, dtype, dtype, lengths, device),
            with_gradients("naive", dtype, torch.float32, lengths, device),
            strict=True,
        )
        for lengths in LENGTHS
    )
    return worst(by_norm(got, want) for pair in pairs for got, want in pair)


def with_gradients(
    name: str, drawn: torch.dtype, dtype: torch.dtype, lengths: tuple[int, int], device: torch.device
) -> list[Tensor]:
    """The result of a kernel in `dtype` on values that are drawn in another, and its gradients by q, k and v."""
    draw, (queries, keys) = torch.Generator().manual_seed(0), lengths
    shapes = [(2, 4, tokens, 64) for tokens in (queries, keys, keys, queries)]
    q, k, v, dy = (torch.randn(shape, generator=draw).to(device, drawn).to(dtype) for shape in shapes)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    y = KERNELS[name](*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, dy)]


def cache(lab: Lab) -> Iterator[Case]:
    """Keys and values that were kept give what computing everything anew gives."""
    for name, sizes in PARTS.items():
        yield Case(f"{name} with a cache, and all at once: logits", LOGITS, partial(cached, lab, sizes), "absolute")
    for length in (1, 7):
        what = f"greedy after {length}, with a cache and without, past the context: tokens that differ"
        yield Case(what, EXACT, partial(greedy, lab, length), f"of {CONTINUED}")


@torch.no_grad()
def cached(lab: Lab, sizes: list[int]) -> float:
    """How far the logits with a cache are from those without."""
    model, kept = lively().to(lab.world.device), Cache()
    x = torch.randint(MODEL.vocab, (2, MODEL.context), generator=torch.Generator().manual_seed(1)).to(lab.world.device)
    return largest(torch.cat([model(part, cache=kept) for part in x.split(sizes, dim=1)], dim=1), model(x))


def greedy(lab: Lab, length: int) -> float:
    """How many tokens after a prompt of this length differ."""
    model = lively().to(lab.world.device)
    a, b = (generate(model, range(length), CONTINUED, temperature=0, cached=cached) for cached in (True, False))
    return float(sum(one != other for one, other in zip(a, b, strict=True)))


def exchange(lab: Lab) -> Iterator[Case]:
    """A model that is exported and imported is the same, and transformers computes the same with it."""
    what = "exported in Hugging Face's form and imported, and before: every weight"
    yield Case(what, EXACT, back_again, "absolute")
    what = "exported and computed by transformers, and by us: logits"
    yield Case(what, LOGITS, read_by_transformers, "absolute", transformers_missing())


def back_again() -> float:
    """How far the imported weights are from the exported ones."""
    with tempfile.TemporaryDirectory() as folder:
        got, want = whole_weights(model_of(open_source(str(exported(folder))))), whole_weights(lively())
    return worst(largest(got[name], want[name]) for name in got.keys() | want.keys())


def read_by_transformers() -> float:
    """How far transformers' logits are from ours."""
    with tempfile.TemporaryDirectory() as folder:
        got = compare.transformers_logits(exported(folder), MODEL)
    assert got is not None
    return largest(got, compare.logits(lively()))


def exported(below: str) -> Path:
    """The exported model, in a folder."""
    out = Path(below) / "model"
    export(lively(), Bytes(), out, "hf", "", lambda _: None)
    return out


def wide_head(lab: Lab) -> Iterator[Case]:
    """GPT-2's widest product is right for batches of 8 and of 9; builds of torch for mps were wrong from 9 on."""
    for batch in (8, 9):
        what = f"head of {WIDTH} x {ROWS:,}, batch of {batch}, and on the CPU in fp64: logits, relative to the largest"
        yield Case(what, SUM, partial(head_apart, batch, lab.world.device))


@torch.no_grad()
def head_apart(batch: int, device: torch.device) -> float:
    """How far the head's product is from the CPU's in fp64."""
    draw = torch.Generator().manual_seed(0)
    weight, x = 0.02 * torch.randn(ROWS, WIDTH, generator=draw), torch.randn(batch, 4, WIDTH, generator=draw)
    got = head.logits(x.to(device), weight.to(device), ROWS)
    return of_largest(got, x.double() @ weight.double().t())
