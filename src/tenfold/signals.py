"""What SIGTERM and Ctrl-C do to a training: it saves, and ends with an exit code that schedulers tell from failures."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

REQUEUE, INTERRUPTED = 75, 130
CODES = {signal.SIGTERM: REQUEUE, signal.SIGINT: INTERRUPTED}


@contextmanager
def noted(say: Callable[[str], None]) -> Iterator[list[int]]:
    """While the block runs, SIGTERM and Ctrl-C only leave their exit code in the list that this gives; the loop saves.
    `say` tells the user."""
    from tenfold.world import launched  # and torch, which takes seconds in which SIGTERM may come

    received = [0]

    def note(number: int, frame: FrameType | None) -> None:
        if received[0] and number == signal.SIGINT and not launched():  # launchers send it more than once
            raise KeyboardInterrupt
        if not received[0]:
            received[0] = CODES[signal.Signals(number)]
            say(f"{signal.Signals(number).name} received: saving, then stopping")

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in CODES}
    try:
        yield received
    finally:
        for number, handler in before.items():
            # Whoever asked for the end may ask again while the process ends; its exit code is decided.
            ending = received[0] == REQUEUE and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if ending else signal.SIG_DFL if handler is at_once else handler)


def leave_at_sigterm() -> None:
    """From now on, but where `noted`, SIGTERM ends this process at once with REQUEUE: nothing is trained yet that could
    be lost. Called by the main thread.

    Python's own handlers wait until the main thread returns from what it is in, such as a wait for other processes. A
    thread that is told of the signal by the interpreter's wake-up socket does not.
    """
    if signal.getsignal(signal.SIGTERM) is at_once:
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, at_once)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forget)
    threading.Thread(target=listen, args=(heard, told), daemon=True).start()


def at_once(number: int, frame: FrameType | None) -> None:
    """End this process; where the main thread waits, `listen` is sooner."""
    end()


def hold() -> None:
    """While a worker is forked a SIGTERM for it waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def release() -> None:
    """It does no longer."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def forget() -> None:
    """A forked worker ends by SIGTERM as any process does, and does not tell its parent's socket."""
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is at_once:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    release()


def listen(heard: socket.socket, told: socket.socket) -> None:
    """End this process when it is told of a SIGTERM that nobody else handles. `told` is kept open."""
    while numbers := heard.recv(1):
        if numbers[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is at_once:
            end()


def end() -> None:
    """Say that nothing is lost, and end."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"tenfold: SIGTERM: nothing was trained yet; the same command begins again\n")
    os._exit(REQUEUE)
