"""Scripts in Triton's interpreter, each in a process of its own that is forked from one which has imported what all need.

The interpreter must be chosen before Triton is imported, and scripts change what the compiler finds profitable, so that none may
run in the process of the tests; but torch, Triton and the compiler take seconds to import.

    done = script(HERE / "interpret.py", json.dumps(job))   # returncode, stdout, stderr, as subprocess.run has them
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

SELDOM = (1_000_000, 20, 100)  # how often cycles are looked for
TESTS = Path(__file__).resolve().parents[1]
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
TAKEN: list[float] = []  # seconds of the processor, of each script that was run; of the first, with what it waited for
MODULES = (
    "torch triton triton.language sympy chunkform chunkform.codegen.commands.compile chunkform.codegen.commands.kinds "
    "chunkform.codegen.commands.recurrence_kind chunkform.codegen.commands.attention_kind chunkform.runtime.op.op "
    "chunkform.codegen.recurrence.check chunkform.codegen.attention.check chunkform.codegen.checking.calls "
    "chunkform.runtime.chunk_kernels.kernels chunkform.runtime.attention.op networkx mpmath"
).split()


def script(path: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script, or a module by its name, with these arguments, as `python path words` does from the repository's folder."""
    with tempfile.TemporaryDirectory() as folder:
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps([str(path), list(words), folder, {**os.environ} | INTERPRETED]) + "\n")
        server.stdin.flush()
        code, taken = json.loads(server.stdout.readline())
        TAKEN.append(taken)
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess([str(path), *words], code, out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for each process of the tests, which ends with it: it reads until its input ends."""
    found = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(Path(__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | INTERPRETED,
        cwd=TESTS.parent,
    )
    atexit.register(found.kill)
    return found


def main() -> None:
    """Answer each line of the input, a script with its arguments, with its exit code."""
    began = 0.0
    sys.path[0] = str(TESTS)
    sys.path.insert(1, str(TESTS.parent))
    for name in MODULES:
        importlib.import_module(name)
    ready()
    gc.freeze()  # what is imported is looked at by no child
    gc.set_threshold(*SELDOM)
    for line in sys.stdin:
        path, words, folder, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            os._exit(_run(path, words, Path(folder)))
        _, status, used = os.wait4(child, 0)
        taken, began = used.ru_utime + used.ru_stime + time.process_time() - began, time.process_time()
        print(json.dumps([os.waitstatus_to_exitcode(status), taken]), flush=True)


def ready() -> None:
    """What most scripts would do first: read the specs of the tests, and rewrite the functions that kernels call, as the
    interpreter does with each before it runs."""
    from triton.runtime.interpreter import InterpretedFunction

    from shared import triton_errors

    triton_errors.load_specs()
    for name, module in list(sys.modules.items()):
        if name.startswith(("chunkform.runtime", "triton.language")):
            for x in list(vars(module).values()):
                if isinstance(x, InterpretedFunction):
                    x.rewrite()


def _run(path: str, words: list[str], folder: Path) -> int:
    """In the forked process: the script as the main program, with its output in files."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), stream)
    os.close(0)
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    try:
        if path.endswith(".py"):
            runpy.run_path(path, run_name="__main__")
        else:
            runpy.run_module(path, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
