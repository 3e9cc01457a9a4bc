"""`tenfold verify`: every claim holds here, and none does once what it is about is broken."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import Tenfold
from tenfold.cli import call
from tenfold.cli.verify import VerifyOptions
from tenfold.errors import ConfigError, HardwareError
from tenfold.exchange import huggingface
from tenfold.hardware import Hardware
from tenfold.model import attention, gpt, head
from tenfold.model.attention import KERNELS, causal_mask
from tenfold.model.linear import LINEARS
from tenfold.training import checkpoint, trainer
from tenfold.training.precision import PRECISIONS
from tenfold.training.trainer import rescale
from tenfold.verify import lab, models, together, trainings
from tenfold.verify.case import CPU_SUM, Case
from tenfold.verify.verdict import CLAIMS, Result, verify

QUICK = [name for name in CLAIMS if name not in ("processes", "compile")]  # those take most of the time
ROUNDED = ("transformers", "accumulation", "precision", "attention")  # two computations, not one against itself
# what it says when dynamo looks at the .grad of what it traces, and when it traces a Function
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
Break = Callable[[pytest.MonkeyPatch], None]


def results(claim: str) -> list[Result]:
    """Every comparison of a claim on the CPU."""
    return list(verify([claim], "cpu"))


def fails(claim: str) -> list[str]:
    """What fails of a claim."""
    return [result.what for result in results(claim) if result.status == "fails"]


@pytest.mark.parametrize("claim", QUICK)
def test_it_holds_here(claim: str) -> None:
    found = results(claim)
    assert {result.status for result in found} <= {"holds", "skipped"}, found
    held = [result for result in found if result.status == "holds"]
    assert held
    for result in held:
        assert result.apart is not None
        assert result.bound is not None
        assert (claim in ROUNDED) * 1e-12 <= result.apart <= result.bound
    assert all(result.reason for result in found if result.status == "skipped")


# --- broken on purpose


def exact_gelu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gpt, "gelu", F.gelu)


def mean_loss(patch: pytest.MonkeyPatch) -> None:
    plain = head.plain

    def wrong(x: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
        return plain(x, weight, targets, vocab) / len(targets)

    patch.setattr(head, "plain", wrong)
    patch.setitem(head.LOSSES, "plain", wrong)


def only_the_last(patch: pytest.MonkeyPatch) -> None:
    """Every micro-step but the last is without effect, as where each one begins anew."""
    taken = trainer.Batches.take

    def forgetful(self: trainer.Batches, position: int, k: int) -> tuple[Tensor, Tensor]:
        x, y = taken(self, position, k)
        return x, y if k == self.split.accum - 1 else torch.full_like(y, head.IGNORE)

    patch.setattr(trainer.Batches, "take", forgetful)


def coarse_products(patch: pytest.MonkeyPatch) -> None:
    def coarse(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight + (weight.round(decimals=1) - weight).detach(), bias)

    patch.setitem(LINEARS, "coarse", coarse)
    patch.setitem(PRECISIONS, "bf16", replace(PRECISIONS["bf16"], linear="coarse"))


def scale_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Gradients that stay scaled are clipped to nothing."""

    def wrong(gradients: list[Tensor], clip: float, norm: Tensor, used: float) -> None:
        rescale(gradients, clip, norm, 1.0)
        if used != 1:
            torch._foreach_mul_(gradients, 1e-6)

    patch.setattr(trainer, "rescale", wrong)


def looks_one_ahead(patch: pytest.MonkeyPatch) -> None:
    def ahead(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = causal_mask(q.size(-2), k.size(-2), q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.roll(-1, 0) | mask)

    patch.setitem(KERNELS, "rows", ahead)


def gelu_when_compiled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gpt, "gelu", lambda x: F.gelu(x, approximate="none" if torch.compiler.is_compiling() else "tanh"))
    patch.setattr(trainings, "COMPILED", {"blocks": {"compile": "blocks", "backend": "aot_eager"}})
    patch.setattr(trainings, "probe_compile", lambda *_: None)


def moments_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "moments_of", lambda *_: iter(()))


def position_forgotten(patch: pytest.MonkeyPatch) -> None:
    restored = checkpoint.restore

    def wrong(one: trainer.Trainer, folder: Path) -> None:
        restored(one, folder)
        one.position = 0

    patch.setattr(checkpoint, "restore", wrong)


def mask_top_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def not_turned(patch: pytest.MonkeyPatch) -> None:
    """The square matrices, of which no shape tells."""
    patch.setattr(huggingface, "turned", lambda name, t: t.t() if t.dim() == 2 and "attn.c_attn" in name else t)


def wrong_from_nine_on(patch: pytest.MonkeyPatch) -> None:
    logits = head.logits
    patch.setattr(head, "logits", lambda x, w, vocab: logits(x, w, vocab) * (1 if len(x) < 9 else 1.01))


@pytest.mark.parametrize(
    ("claim", "broken", "what"),
    [
        ("transformers", exact_gelu, "logits"),
        ("transformers", mean_loss, "loss"),
        ("accumulation", mean_loss, "24 rows as 24 x 1"),
        ("accumulation", only_the_last, "with a filler"),
        ("precision", coarse_products, "bf16"),
        ("precision", scale_forgotten, "fp16"),
        ("attention", looks_one_ahead, "rows in fp32"),
        ("compile", gelu_when_compiled, "blocks"),
        ("resume", moments_forgotten, "fp32"),
        ("resume", position_forgotten, "fp16"),
        ("cache", mask_top_left, "one token at a time"),
        ("cache", mask_top_left, "greedy after 7"),
        ("export", not_turned, "every weight"),
        ("head", wrong_from_nine_on, "batch of 9"),
    ],
)
def test_it_fails_where_it_is_broken(claim: str, broken: Break, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(what in failed for failed in fails(claim)), fails(claim)


def test_only_what_is_broken_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_one_ahead(monkeypatch)
    wrong_from_nine_on(monkeypatch)
    assert all(what.startswith("rows in ") for what in fails("attention"))
    assert [what.partition(", ")[2][:10] for what in fails("head")] == ["batch of 9"]


def test_an_error_or_no_number_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> float:
        raise RuntimeError("no such kernel\nand a long story")

    def claim(_: lab.Lab):
        yield Case("one", 1.0, broken)
        yield Case("two", 1.0, lambda: float("nan"))
        yield Case("three", 1.0, lambda: 1.0)
        yield Case("four", 1.0, lambda: 0.0, not_here="no device")
        raise ValueError("what comes next")

    monkeypatch.setitem(CLAIMS, "made up", claim)
    one, two, three, four, rest = results("made up")
    assert (one.status, one.reason) == ("fails", "RuntimeError: no such kernel")
    assert two.status == "fails"
    assert three.status == "holds"
    assert (four.status, four.reason, four.apart) == ("skipped", "no device", None)
    assert (rest.status, rest.reason) == ("fails", "ValueError: what comes next")


# --- what cannot run here


def test_without_transformers_its_comparisons_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    found = results("transformers")
    assert [result.status for result in found] == ["skipped"] * 3
    assert all("pip install transformers" in result.reason for result in found)
    assert [result.status for result in results("export")] == ["holds", "skipped"]


@pytest.mark.parametrize(
    ("device", "count", "reasons"),
    [
        ("cuda", 1, ["cuda devices here: 1", "cuda devices here: 1"]),
        ("cuda", 2, [None, "cuda devices here: 2"]),
        ("cuda", 8, [None, None]),
        ("cuda:1", 8, ["one device was asked for, cuda:1"] * 2),
    ],
)
def test_each_process_has_a_gpu_of_its_own(device: str, count: int, reasons: list[str | None]) -> None:
    with lab.opened("cpu") as here:
        there = replace(here, device=device, hardware=Hardware("cuda", "a card", count=count))
        cases = list(trainings.processes(there))
    assert [case.not_here for case in cases[:4]] == [None] * 4  # on the CPU
    assert [case.not_here for case in cases[4::2]] == reasons == [case.not_here for case in cases[5::2]]


# --- several processes


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives a function that makes every Python process begin with some code."""

    def write(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")

    return write


HANGS = "import os, time\nif os.environ.get('RANK') == '1':\n    os.write(2, b'hangs\\n')\n    time.sleep(500)\n"
UNREDUCED = """
import os
if os.environ.get('WORLD_SIZE', '1') != '1':
    from tenfold.training import prepare
    prepare.parallel = lambda model, speed, world: (model, lambda last: None)
"""
TOP_LEFT = """
import sys
if 'verify' in sys.orig_argv:
    import tenfold.model.attention as a
    a.sdpa = lambda q, k, v: a.F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_processes_that_hang_are_ended(
    at_start: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_start(HANGS)
    monkeypatch.setattr(together, "LIMIT", 12)
    with lab.opened("cpu") as here:
        start = time.monotonic()
        with pytest.raises(together.Failed, match=r"^2 processes did not end within 12 s and were stopped"):
            together.together(2, "cpu", "ddp", here.corpus.path)
        assert time.monotonic() - start < 60
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(here.corpus.path) in read(path)]
    assert left == []


def read(path: Path) -> str:
    """A process's command line; empty if it is gone."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_processes_that_keep_their_gradients_fail(at_start: Callable[[str], None]) -> None:
    at_start(UNREDUCED)
    with lab.opened("cpu") as here:
        assert trainings.shared(here, 2, "cpu", "ddp") > 1000 * CPU_SUM


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_processes_that_die_are_told(at_start: Callable[[str], None]) -> None:
    with lab.opened("cpu") as here, pytest.raises(together.Failed, match=r"DataError: .*nowhere is no prepared data"):
        together.together(2, "cpu", "ddp", here.corpus.path / "nowhere")


# --- the verb


def test_the_verb_prints_every_figure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["verify", "--only", "cache, head", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("on ")
    assert lines[2].split() == ["claim", "difference", "at", "most", "compared"]
    assert [line.split()[:2] for line in lines[3:9]] == [["cache", "holds"]] * 4 + [["head", "holds"]] * 2
    assert lines[-1].startswith("6 of 6 comparisons hold, 0 fail, 0 skipped; ")
    wrong_from_nine_on(monkeypatch)
    assert call(["verify", "--only", "head", "--device", "cpu"]) == 1
    assert "1 of 2 comparisons hold, 1 fail, 0 skipped" in capsys.readouterr().out


def test_what_is_asked_wrongly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--only 'cash' is no claim, did you mean 'cache'"):
        call(["verify", "--only", "head,cash"])
    with pytest.raises(HardwareError, match="'mps' is not here"):
        call(["verify", "--device", "mps"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="verify starts its own processes"):
        call(["verify"])


def test_the_help_names_every_claim() -> None:
    source = Path(sys.modules[VerifyOptions.__module__].__file__ or "").read_text()
    told = source.partition("Some of ")[2].partition(",\n    with")[0]
    assert told.replace(" and ", ", ").replace("\n", " ").split(", ") == list(CLAIMS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_holds_here(tenfold: Tenfold) -> None:
    done = tenfold("verify", "--device", "cpu", timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert list(dict.fromkeys(line[0] for line in lines[2:-1])) == list(CLAIMS)
    assert {line[1] for line in lines[2:-1]} == {"holds", "skipped"}
    assert "0 fail" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_broken_installation_ends_with_1(tenfold: Tenfold, at_start: Callable[[str], None]) -> None:
    at_start(TOP_LEFT)
    done = tenfold("verify", "--only", "cache", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr[-3000:]
    assert "cache         fails" in done.stdout
