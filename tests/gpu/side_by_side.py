"""The GPU tests in several processes, on all GPUs, since compiling kernels takes most of their time: `make test-gpu`.

    python tests/gpu/side_by_side.py [--processes 16] [--seconds 480] [what pytest takes, such as -k name or --unverified]

With --seconds, no group of tests begins after that time; `--unverified` then goes on with what has not passed yet for today's
kernels, so that pieces add up. Tests that are marked `alone`, as they time something or fill memory, come last, one by one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LOST = 75  # how a process ends whose GPU refuses to go on: another takes its place
NOTHING = 5  # how pytest ends where there was no test to run
LIVES = 5  # processes, one after the other, in a place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float)
    own, words = parser.parse_known_args()
    until = float("inf") if own.seconds is None else time.time() + own.seconds
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(own.processes) as pool:
            ended = [
                *pool.map(lambda n: lives(str(n), [*words, "-m", "not alone"], folder, until), range(own.processes))
            ]
        print(f"{time.time() - begun:.0f} s; alone:", flush=True)
        ended.append(lives("", [*words, "-m", "alone"], folder, until))
        left = [x.name for x in Path(folder).glob("*.left")]
    rest = ", and not all of it: go on with --unverified" if left else ""
    print(f"{time.time() - begun:.0f} s in {own.processes} processes{rest}")
    raise SystemExit(any(x not in (0, NOTHING) for x in ended) or bool(left))


def lives(worker: str, words: list[str], folder: str, until: float) -> int:
    """A place for processes: what the worst of those in it, one after the other, ended with."""
    worst = 0
    for _ in range(LIVES):
        code = run(worker, words, folder, until)
        worst = worst if code in (0, NOTHING) else code
        if code in (0, 1, NOTHING):
            return worst
    return worst


def run(worker: str, words: list[str], folder: str, until: float) -> int:
    """One process, of which only the last line is told where nothing failed."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "--no-header", "-p", "no:cacheprovider", *words]
    environment = os.environ | {"CHUNKFORM_WORKER": worker, "CHUNKFORM_CLAIMS": folder, "CHUNKFORM_UNTIL": str(until)}
    if worker:
        environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    told = done.stdout.strip().splitlines()
    if done.returncode not in (0, NOTHING) or any(x.startswith("--durations") for x in words):
        print(f"--- process {worker or 'alone'} ended with {done.returncode}", *told, sep="\n", flush=True)
    else:
        print(f"--- process {worker or 'alone'}: {told[-1] if told else ''}", flush=True)
    return done.returncode


if __name__ == "__main__":
    main()
