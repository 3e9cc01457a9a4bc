"""The entry point: which verb is called, how an error is told, how a process ends."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence

from tenfold.cli.check import check
from tenfold.cli.data import prepare
from tenfold.cli.evaluate import evaluate
from tenfold.cli.exchange import export, import_
from tenfold.cli.film import film
from tenfold.cli.inspect import data
from tenfold.cli.measure import ladder, plan, tune
from tenfold.cli.models import info, runs, sample
from tenfold.cli.report import report
from tenfold.cli.train import train
from tenfold.cli.verify import verify
from tenfold.cli.watch import watch
from tenfold.errors import ConfigError, TenfoldError, did_you_mean, without_secrets
from tenfold.run import PRESETS
from tenfold.signals import INTERRUPTED, leave_at_sigterm

VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "prepare": prepare,
    "data": data,
    "sample": sample,
    "eval": evaluate,
    "import": import_,
    "export": export,
    "film": film,
    "watch": watch,
    "report": report,
    "runs": runs,
    "check": check,
    "verify": verify,
    "ladder": ladder,
    "tune": tune,
    "plan": plan,
    "info": info,
}


def usage() -> str:
    """What `tenfold --help` prints."""
    lines = [f"  {name:<9} {verb.__doc__}" for name, verb in VERBS.items()]
    return "\n".join(
        (
            "usage: tenfold VERB [OPTIONS]",
            "",
            "Trains GPT-2 from scratch on whatever hardware you have.",
            "",
            *lines,
            "",
            f"presets: {', '.join(PRESETS)}",
            "`tenfold VERB --help` tells a verb's options; `tenfold train PRESET --help` a preset's, with its values.",
        )
    )


def call(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"tenfold {version('tenfold')}")
        return 0
    verb = VERBS.get(arguments[0])
    if verb is None:
        raise ConfigError(
            f"no verb {arguments[0]!r}{did_you_mean(arguments[0], VERBS)}; possible are {', '.join(VERBS)}"
        )
    return verb(arguments[1:])


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    if sys.argv[1:2] == ["train"]:
        leave_at_sigterm()
    try:
        code = call(sys.argv[1:])
    except TenfoldError as error:
        code = error.code
        complain(str(error))
    except BrokenPipeError:
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
    except OSError as error:
        code = 2
        complain(f"{error.filename or 'output'}: {error.strerror}; mend that and run the same command again")
    except SystemExit as ending:  # of the argument parser, or because another process failed
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    finish(code)


def complain(message: str) -> None:
    """Print an error in one line. What one process of a group met the others may not have."""
    rank = os.environ.get("RANK", "0")
    print(f"tenfold: {'' if rank == '0' else f'process {rank}: '}{without_secrets(message)}", file=sys.stderr)


def finish(code: int) -> None:
    """Leave the process group, if there is one, and end. Among several processes without the interpreter's own
    shutdown, in which gloo's threads sometimes crash or hang after all work is done; and after Ctrl-C, which may have
    come between a thread's start and its pool's knowing of it, and would then be waited for without end."""
    launched = False
    if "torch.distributed" in sys.modules:
        from tenfold import world

        if code == 0 or code > 2:
            world.leave()
        launched = world.launched()
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more ends it at once
        atexit._run_exitfuncs()
    if launched or code == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
