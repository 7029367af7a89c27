"""Random calls on a GPU, drawn by hypothesis, each compared with the float64 oracle: 640 of them, in a process for each op.

CHUNKFORM_FUZZ sets how many of each op and backend (default: 32 in Triton, 8 in torch).
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from op_cases import SPECS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TESTS = Path(__file__).parent.parent
CASES = {"triton": 32, "torch": 8}


def fuzzed(name: str, backend: str, cases: int) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "fuzz", name]
    command += ["--device", "cuda", "--backend", backend, "--cases", str(cases)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    ran = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    return ran.stdout if ran.returncode in (0, 1) and ran.stdout else f"FAILED {name}: {ran.stderr[-2000:]}"


@pytest.mark.parametrize("backend", CASES)
def test_random_calls_agree_with_the_oracle(backend):
    cases = int(os.environ.get("CHUNKFORM_FUZZ", CASES[backend]))
    with ThreadPoolExecutor(max_workers=min(len(SPECS), os.cpu_count() or 1)) as pool:
        said = list(pool.map(lambda name: fuzzed(name, backend, cases), SPECS))
    failed = [line for text in said for line in text.splitlines() if line.startswith("FAILED")]
    ran = sum(int(m.group(1)) for text in said for m in [re.search(r"^(\d+) cases", text, re.MULTILINE)] if m)
    print(f"{ran} calls of {len(SPECS)} ops in {backend}, {len(failed)} failed")
    assert not failed, "\n".join(failed)
    assert ran >= cases * len(SPECS)
