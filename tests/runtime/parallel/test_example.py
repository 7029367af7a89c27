"""The example that trains on sequences in segments: FSDP2 and context parallelism have the losses of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "context_parallel.py"
OPTIONS = ["--steps", "3", "--every", "1", "--length", "75", "--batch", "2", "--width", "16", "--blocks", "1"]


def losses(command: list[str], *more: str) -> list[float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(EXAMPLE), *OPTIONS, *more], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line)["nats"] for line in done.stdout.splitlines() if line.startswith("{")]


def test_two_processes_train_as_one_does() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    alone = losses([sys.executable])
    together = losses(torchrun, "--cp", "2")
    assert len(alone) == 3 and alone[-1] < alone[0]
    assert max(abs(a - b) for a, b in zip(alone, together, strict=True)) < 1e-4
