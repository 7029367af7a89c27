"""Spec files that break the process which runs them: they are refused in a sentence, or leave nothing, and all is put back."""

import pytest
from shared import spec_files
from shared.forked import code

from chunkform.spec.language.alone import REPLACED
from chunkform.spec.language.kept import Kept

SPEC = """
from chunkform.spec.language import Recurrence
r = Recurrence("kept")
d = r.dims("d")
x = r.inputs("x", d)
h = r.state("h", d)
r.update(h, h.prev + x)
r.output("y", h.next)
"""
CHANGED = {  # what a file does, and the name that it is refused by
    "import builtins; builtins.len = None": "builtins.len",
    "import builtins; del builtins.isinstance": "builtins.isinstance",
    "import builtins; builtins.Exception = builtins.BaseException = int": "builtins.BaseException",
    "import builtins; vars(builtins).clear()": "builtins.abs",
    "import builtins; builtins.__import__ = None": "builtins.__import__",
    "import builtins; builtins.sorted = lambda *x, **y: []": "builtins.sorted",
    "import sys; sys.modules.clear()": "sys.modules['sys']",
    "import sys; sys.modules = {}": "sys.modules['sys']",
    "import sys; sys.modules['sympy'] = None": "sys.modules['sympy']",
    "import sys; [sys.modules.pop(x) for x in list(sys.modules) if x.startswith('chunkform')]": "sys.modules['chunkform",
    "import re; re.compile = re.match = None": "re.match",
    "import os; os.environ = None": "os.environ",
    "import os; os.fspath = os.path.join = None": "os.fspath",
    "import sys; sys._getframe = None": "sys._getframe",
    "import typing; typing.TYPE_CHECKING = True": "typing.TYPE_CHECKING",
    "import sympy; sympy.Symbol = None": "sympy.Symbol",
    "import pathlib; pathlib.Path.resolve = None": "Path.resolve",
    "import pathlib; del pathlib.PurePath.name": "PurePath.name",
    "from chunkform.spec.language import Recurrence as R; R.validate = None": "Recurrence.validate",
    "import traceback, linecache; traceback.extract_tb = linecache.getlines = None": "traceback.extract_tb",
}
SETTINGS = {  # what a file does, and what shows that nothing is left of it
    "import sys; sys.setrecursionlimit(len(__import__('inspect').stack()) + 40)": "sys.getrecursionlimit()",
    "import sys; sys.stdout = sys.stderr = None": "sys.stderr is None",
    "import sys; sys.stderr.close()": "sys.stderr.closed",
    "import os; os.close(1); os.close(2)": "len(os.listdir('/proc/self/fd'))",
    "import os; os.closerange(1, 3)": "[os.fstat(i).st_ino for i in (1, 2)]",
    "import os, tempfile; x = tempfile.mkdtemp(); os.chdir(x); os.rmdir(x)": "os.getcwd()",
    "import sys; sys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()": "__import__('colorsys').__name__",
    "import sys; sys.settrace(lambda *x: None); sys.setprofile(lambda *x: None)": "sys.gettrace(), sys.getprofile()",
    "import sys; sys.excepthook = None": "sys.excepthook.__name__",
    "import warnings; warnings.simplefilter('error')": "len(warnings.filters)",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)": "signal.getsignal(signal.SIGINT)",
    "import signal; signal.setitimer(signal.ITIMER_REAL, 1000)": "signal.getitimer(signal.ITIMER_REAL)",
    "import os; os.environ.clear()": "'PATH' in os.environ",
    "import gc; gc.disable()": "__import__('gc').isenabled()",
    "import torch; torch.set_default_dtype(torch.float64)": "__import__('torch').get_default_dtype()",
    "import torch; torch.set_default_device('meta')": "__import__('torch').empty(0).device",
    "import torch; torch.set_grad_enabled(False)": "__import__('torch').is_grad_enabled()",
}
STARTED = {  # what a file would leave running, and what is said of it
    "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()": "starts a thread",
    "import threading, time; threading.Timer(60, print).start()": "starts a thread",
    "import atexit; atexit.register(print, 'at the end')": "at the end of the process",
    "import os; os.fork()": "forks the process",
    "import multiprocessing; multiprocessing.get_context('fork').Process(target=print).start()": "forks the process",
}
STAY = {  # what a file adds, and what shows that it is there afterwards
    "import sys; sys.path.insert(0, 'beside')": "'beside' in sys.path",
    "import this": "'this' in sys.modules",
    "import builtins; builtins.more = 1": "hasattr(__import__('builtins'), 'more')",
}
RUN = """
import io, os, signal, sys, warnings
from pathlib import Path
from chunkform.errors import LoadError
from chunkform.spec.language import load

for before in (True, False):
    for line, shown in {!r}.items():
        was = repr(eval(shown)) if {!r} else None
        spec = (line, {!r}) if before else ({!r}, line)
        Path({!r}).write_text(chr(10).join(spec))
        try:
            told = str(len(load({!r})))
        except LoadError as error:
            told = str(error)
        now = repr(eval(shown)) if {!r} else None
        print([line, told, was, now], file=sys.__stdout__)
"""


def told(lines, folder, evaluated):
    """What loading says of a spec with each line before it and behind it, and what an expression showed before and after."""
    file = str(folder / "kept.py")
    ended = code(RUN.format(lines, evaluated, SPEC, SPEC, file, file, evaluated))
    assert ended.returncode == 0, ended.stderr
    found = [eval(x) for x in ended.stdout.splitlines() if x.startswith("[")]
    assert len(found) == 2 * len(lines)
    return found


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    return told(CHANGED, tmp_path_factory.mktemp("changed"), False)


def test_what_changes_python_or_a_library_is_refused_and_put_back(changed):
    for line, said, _, _ in changed:
        assert "changes " in said and "a spec declares, and changes nothing of Python" in said, (line, said)
        shown = said.partition("changes ")[2]
        assert CHANGED[line].partition(".")[0] in shown, (line, said)


def test_settings_are_put_back_without_a_word(tmp_path):
    for line, said, was, now in told(SETTINGS, tmp_path, True):
        assert was == now, line
        assert said == "1" or "Error: " in said, (line, said)  # of what the file itself could no longer do


def test_what_would_go_on_beside_a_file_or_after_it_is_refused(tmp_path):
    for line, said, _, _ in told(STARTED, tmp_path, False):
        assert STARTED[line] in said and "a spec declares, and does nothing else" in said, (line, said)


def test_what_a_file_adds_stays(tmp_path):
    for line, said, _, now in told(STAY, tmp_path, True):
        assert (said, now) == ("1", "True"), line


def test_the_spec_files_of_tests_break_nothing():
    """Which are read without a look at it, but here."""
    kept = Kept(REPLACED)
    for file in sorted(spec_files.SPECS.glob("*.py")):
        spec_files.read.__wrapped__(file)
    assert kept.put_back() == []
