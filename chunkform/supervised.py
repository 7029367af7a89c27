"""The command line in a process of its own: where a signal, or `os._exit` in a thread, ends it without a word, the process that
waits for it says what has ended, and what ran then."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BAD_INPUT, AT_FAULT, INTERRUPTED, KILLED = 2, 4, 130, 137  # exit codes; `codegen/commands/terminal.py` has the others
FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS"}  # what a process does to itself
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
ONE_SIGNAL = 1.0  # seconds: a terminal interrupts both processes, and this one passes on what it is sent itself
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
LENGTH = 4096
_note: mmap.mmap | None = None  # what both processes see: has the program come to its end, and which file runs


@contextlib.contextmanager
def running(file: Path) -> Iterator[None]:
    """Inside, a spec file runs, and what ends the process is its doing."""
    before = _running()
    _write(os.fsencode(file))
    try:
        yield
    finally:
        _write(before)


def supervised(program: Callable[[], object]) -> None:
    """Run a program in a process of its own, and end as it does. Where that can't be, it runs in this one."""
    global _note
    if sys.platform != "linux":
        program()
        return
    awaited = {signal.SIGCHLD, *(getattr(signal, x) for x in PASSED_ON)}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _note = mmap.mmap(-1, LENGTH)
    before, own = signal.pthread_sigmask(signal.SIG_BLOCK, awaited), os.getpid()
    try:
        child = os.fork()
    except OSError:  # no process can be made any more
        child = 0
    if child == 0:
        if os.getpid() != own:
            ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(AT_FAULT)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, _Interrupted())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            program()
        finally:
            _note[0] = 1
        return
    status, passed = _awaited(child, awaited)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sys.exit(_told(os.waitstatus_to_exitcode(status), passed))


def _awaited(child: int, awaited: set[signal.Signals]) -> tuple[int, set[int]]:
    """How a process ended, and the signals that it was sent through this one."""
    passed: set[int] = set()
    while True:
        seen = signal.sigwaitinfo(awaited)
        if seen.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status, passed
        else:
            passed.add(seen.si_signo)
            if seen.si_signo != signal.SIGINT or seen.si_code <= 0:  # those of the terminal it gets as well
                os.kill(child, seen.si_signo)


def _told(code: int, passed: set[int]) -> int:
    """The exit code of a process that ended so, after what there is to say of it."""
    assert _note is not None
    file, name = os.fsdecode(_running()), signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if code >= 0 and _note[0]:
        return code
    if -code in passed:
        if -code != signal.SIGINT:
            signal.signal(-code, signal.SIG_DFL)
            signal.raise_signal(-code)
        return INTERRUPTED
    if file:
        short = "; a system that is short of memory sends SIGKILL as well" if name == "SIGKILL" else ""
        _say(f"{name} ended the program: a spec declares, and doesn't end the program{short}\n  {file}")
        return BAD_INPUT
    if code >= 0 or name in FAULTS:
        _say(f"chunkform itself is at fault: it ended with {name}. Please report it with the spec")
        return AT_FAULT
    short = ", as a system that is short of memory does" if name == "SIGKILL" else ""
    _say(f"something ended the program with {name}{short}")
    return 128 - code


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(f"error: {sentence}\n")
        sys.stderr.flush()


def _running() -> bytes:
    return b"" if _note is None else _note[1:].rstrip(b"\0")


def _write(file: bytes) -> None:
    if _note is not None:
        _note[1:] = file[: LENGTH - 1].ljust(LENGTH - 1, b"\0")


class _Interrupted:
    """A handler for which two interruptions at once are one."""

    def __init__(self) -> None:
        self.last = -ONE_SIGNAL

    def __call__(self, *_: object) -> None:
        before, self.last = self.last, time.monotonic()
        if self.last - before >= ONE_SIGNAL:
            raise KeyboardInterrupt
