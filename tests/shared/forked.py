"""Scripts and code, each in a process of its own that is forked from one which has imported what takes seconds to import.

A script runs in Triton's interpreter, which must be chosen before Triton is imported, and may change what the compiler finds
profitable; torch, Triton and the compiler are imported, and the specs of the tests are read. Code finds torch imported, and of
chunkform nothing, as in a new process of a user.

    done = script(HERE / "interpret.py", json.dumps(job))   # returncode, stdout, stderr, as subprocess.run has them
    done = code("import chunkform; print('sympy' in sys.modules)")
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TextIO

SELDOM = (5_000_000, 20, 100)  # how often cycles are looked for: after several specs, not after each
TESTS = Path(__file__).resolve().parents[1]
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
TAKEN: list[float] = []  # seconds of the processor, of each script that was run; of the first, with what it waited for
MODULES = (
    "torch triton triton.language sympy chunkform chunkform.codegen.commands.compile chunkform.codegen.commands.kinds "
    "chunkform.codegen.commands.recurrence_kind chunkform.codegen.commands.attention_kind chunkform.runtime.op.op "
    "chunkform.codegen.recurrence.check chunkform.codegen.attention.check chunkform.codegen.checking.calls "
    "chunkform.runtime.chunk_kernels.decay_gradient chunkform.runtime.chunk_kernels.segment_scan "
    "chunkform.runtime.attention.op networkx mpmath"
).split()
CALLED = [f"chunkform.runtime.{x}" for x in ("chunk_kernels", "torch_form", "launch", "op")]  # by printed ops


def script(path: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script, or a module by its name, with these arguments, as `python path words` does from the repository's folder."""
    return _asked("interpreted", [str(path), *words], INTERPRETED)


def code(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code, as `python -c text` does from the repository's folder, with more in the environment."""
    return _asked("plain", ["-c", text], environment)


def program(path: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user does, of which torch alone is imported."""
    return _asked("plain", [str(path), *words], {})


def _asked(kind: str, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = _server(kind)
        server.write(json.dumps([*words[:1], words[1:], folder, {**os.environ} | environment]) + "\n")
        server.flush()
        ended, taken = json.loads(server.readline())
        TAKEN.append(taken)
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(words, ended, out, err)


@functools.cache
def _server(kind: str) -> TextIO:
    """A connection to the server of a kind. All workers of a run of tests have one of each kind, which ends with the run."""
    from filelock import FileLock  # here, as code finds nothing imported but torch

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    lasts = os.getpid() if run is None else os.getppid()  # the process with which it ends
    folder = Path(
        tempfile.gettempdir(), f"cf_tests_{run[:12] if run else lasts}"
    )  # short: a socket's path may have 100 letters
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / kind
    with FileLock(f"{path}.lock"), socket.socket(socket.AF_UNIX) as own:
        try:
            own.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):  # there is none yet, or one was killed
            path.unlink(missing_ok=True)
            _start(kind, path, lasts)
            own.connect(str(path))
        return own.makefile("rw")


def _start(kind: str, path: Path, lasts: int) -> None:
    """Start a server, and wait until it listens, which it does before it imports."""
    plain = kind == "plain"
    words = [*(() if plain else ("-W", "ignore")), str(Path(__file__)), kind, str(path), str(lasts)]
    told = Path(f"{path}.err")
    with told.open("w") as out:
        environment = os.environ | ({} if plain else INTERPRETED)
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, *words], stdin=nothing, stdout=out, stderr=out, env=environment, cwd=TESTS.parent
        )
    while not path.exists():
        assert process.poll() is None, told.read_text()
        time.sleep(0.01)


def main() -> None:
    """Listen for workers of a run of tests, and answer each in a process of its own, until the run has ended."""
    kind, path, lasts = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    gc.set_threshold(*SELDOM)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}_")
    listening.listen()
    os.rename(f"{path}_", path)  # from here on it can be found
    if kind == "plain":
        sys.path[0] = ""
        importlib.import_module("torch")
    else:
        sys.path[0] = str(TESTS)
        sys.path.insert(1, str(TESTS.parent))
        importlib.import_module("shared.fast_source")
        importlib.import_module("shared.passed").install()
        for name in MODULES:
            importlib.import_module(name)
        ready()
    gc.collect()
    gc.freeze()  # what is imported is looked at by no child
    waited = time.process_time()
    while _lives(lasts):
        if select.select([listening], [], [], 1.0)[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                with connection, connection.makefile("rw") as worker:
                    _answer(worker, waited)
                os._exit(0)
            connection.close()
            waited = 0.0  # which is counted once
    shutil.rmtree(path.parent, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(worker: TextIO, waited: float) -> None:
    """Answer each line, a script with its arguments, with its exit code and the seconds of the processor that it took; the first
    with what it waited for."""
    for line in worker:
        path, words, folder, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            os._exit(_run(path, words, Path(folder)))
        _, status, used = os.wait4(child, 0)
        taken, waited = used.ru_utime + used.ru_stime + waited, 0.0
        worker.write(json.dumps([os.waitstatus_to_exitcode(status), taken]) + "\n")
        worker.flush()


def ready() -> None:
    """What most scripts would do first: read the specs of the tests, and rewrite the functions that kernels call, as the
    interpreter does with each before it runs."""
    from triton.runtime.interpreter import InterpretedFunction

    from shared import printed, triton_errors

    for name in CALLED:
        package = importlib.import_module(name)
        for x in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(x.name)
    triton_errors.load_specs()
    printed.remember()
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
    tempfile.tempdir = str(folder)  # which is removed: what a process has registered for its end isn't called here
    sys.argv = [path, *words]
    if path.endswith(".py"):
        sys.path.insert(0, str(Path(path).parent))
    try:
        if path == "-c":
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": builtins})
        elif path.endswith(".py"):
            runpy.run_path(path, run_name="__main__")
        else:
            runpy.run_module(path, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    if "multiprocessing" in sys.modules:
        for process in sys.modules["multiprocessing"].active_children():  # such as a pool's, which nothing else ends
            process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
