"""The table of claims; carries them out, one comparison after the other, and says of each whether it holds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tenfold.training.precision import autocast
from tenfold.verify import models, trainings
from tenfold.verify.case import Case
from tenfold.verify.lab import Lab, opened

CLAIMS: dict[str, Callable[[Lab], Iterator[Case]]] = {
    "transformers": models.transformers,
    "accumulation": trainings.accumulation,
    "processes": trainings.processes,
    "precision": trainings.precision,
    "compile": trainings.compilation,
    "attention": models.attention,
    "resume": trainings.resume,
    "cache": models.cache,
    "export": models.exchange,
    "head": models.wide_head,
}


@dataclass(frozen=True)
class Result:
    """One comparison and what came of it."""

    claim: str
    what: str
    status: str
    """holds, fails or skipped."""
    reason: str = ""
    """Why it was skipped, or the error by which it fails."""
    apart: float | None = None
    """The difference in `unit`, where there is one; it holds if that is at most `bound`."""
    bound: float | None = None
    unit: str = ""


def verify(names: Sequence[str], device: str, told: Callable[[str], None] = lambda _: None) -> Iterator[Result]:
    """Every comparison of these claims on a device, as each is done; `told` hears what is tried next. HardwareError for
    a device that is not here."""
    with opened(device) as lab:
        for name in names:
            told(name)
            try:
                for case in CLAIMS[name](lab):
                    told(f"{name}: {case.what}")
                    yield judged(name, case, lab)
            except Exception as error:  # of the claim itself: what it would have compared is not known
                yield Result(name, CLAIMS[name].__doc__ or "", "fails", said(error))


def judged(name: str, case: Case, lab: Lab) -> Result:
    """The result of one comparison. An error, whatever it is, means that the claim does not hold."""
    if case.not_here:
        return Result(name, case.what, "skipped", case.not_here)
    autocast("fp32", lab.world.device)  # the case before may have set how this process multiplies
    try:
        apart = case.measure()
    except Exception as error:
        return Result(name, case.what, "fails", said(error))
    status = "holds" if apart <= case.bound else "fails"
    return Result(name, case.what, status, "", apart, case.bound, case.unit)


def said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:300]
