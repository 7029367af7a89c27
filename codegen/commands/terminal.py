"""What commands share: how wide lines are, how a command ends, what errors look like, and files that are asked for."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import json
import logging
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from rich.console import Console
from rich.markup import escape
from typer import CallbackParam, Exit, Option, Typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from chunkform.errors import ArgumentError, BuildError, ChunkformError, CompilerError, page_of
from chunkform.runtime.launch.files import write_whole
from chunkform.supervised import AT_FAULT, BAD_INPUT, INTERRUPTED

from ..ir.collector import seldom_collected

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter

WELL, NOT_SO, DEPENDS, PIPE = 0, 1, 3, 141  # and those that are imported
EXIT_CODES = "\n\n".join(
    (
        "Exit codes:",
        "0  all is well",
        "1  what was checked isn't so: a stale file, an error above its bound, a kernel over a limit, a claim that fails",
        "2  the input is wrong, or something can't be read or written",
        "3  with verify --strict, a claim depends and none fails",
        "4  chunkform itself is at fault",
        "130  interrupted",
        "137  killed, as by a system that is short of memory",
        "141  nobody reads the output any more",
        f"Documentation: {page_of('index')}",
        "Lines are as wide as the terminal, or as COLUMNS says; piped without it, they aren't wrapped.",
    )
)
UNWRAPPED = 10_000  # columns
Numbers = float | list[float] | None  # what an option holds


def _named_alone(parameters: list[Parameter]) -> list[Parameter]:
    """Flags, which take no value, and arguments, which their names tell, without a type in the help."""
    for x in parameters:
        if isinstance(x, TyperArgument) or getattr(x, "is_flag", False):
            setattr(x, "display_type_rich", lambda ctx: None)  # noqa: B010 - not all of them have it
    return parameters


class Command(TyperCommand):
    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named_alone(super().get_params(ctx))


class Commands(TyperGroup):
    """Commands that end in one clear sentence and an exit code, whatever happens."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        return _named_alone(super().get_params(ctx))

    def main(self, *arguments: Any, **options: Any) -> Any:
        open_streams()
        logger = logging.getLogger("chunkform")
        before, _said["quiet"] = (logger.handlers, logger.level), False
        warnings.showwarning = warned
        try:
            with seldom_collected():
                return super().main(*arguments, **options)
        except OSError as error:  # of what is printed before a command begins, such as --help
            _unwritten(error)
            sys.exit(BAD_INPUT)
        finally:
            logger.handlers, level = before
            logger.setLevel(level)
            with quiet_on_failure():
                sys.stdout.flush()

    def invoke(self, ctx: Any) -> Any:
        code, result = WELL, None
        try:
            try:
                result = super().invoke(ctx)
            except Exit as ended:
                code = ended.exit_code
            sys.stdout.flush()
        except SystemExit:
            raise
        except CompilerError as error:
            show_error(error)
            code = AT_FAULT
        except ChunkformError as error:
            show_error(error)
            code = BAD_INPUT
        except BrokenPipeError:
            drop_output()
            code = PIPE
        except KeyboardInterrupt:
            say("interrupted")
            code = INTERRUPTED
        except OSError as error:
            _unwritten(error)
            code = BAD_INPUT
        except Exception as error:
            if type(error).__module__.startswith(("click", "typer")):  # which say what is wrong with the options
                raise
            if short_of_memory(error):
                say(f"there isn't enough memory for this ({' '.join(str(error).split()) or type(error).__name__})")
                raise Exit(BAD_INPUT) from error
            traceback.print_exception(error)
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            say(f"chunkform itself is at fault: {told}. Please report it with the spec and the lines above")
            code = AT_FAULT
        if code != WELL:
            raise Exit(code)
        return result


def at_least(least: float, help: str, most: float = math.inf) -> object:
    """An option that is a number, or several: smaller ones, and larger ones than `most`, are refused in a sentence."""

    def checked(param: CallbackParam, value: Numbers) -> Numbers:
        for x in value if isinstance(value, list) else [value]:
            if x is not None and not least <= x <= most:
                bound = f"at least {least:g}" if not x >= least else f"at most {most:g}"
                raise ArgumentError(f"--{str(param.name).replace('_', '-')} must be {bound}, got {x:g}")
        return value

    return Option(help=help, callback=checked)


# --- how much is said -------------------------------------------------------------------------------------------------

Quiet = Annotated[bool, Option("--quiet", "-q", help="results alone: no progress and no hints")]
Verbose = Annotated[
    int,
    Option(
        "--verbose",
        "-v",
        count=True,
        metavar="",
        show_default=False,
        help="say what is done, on stderr; -vv: more of it",
    ),
]
_said = {"quiet": False}


def speak(quiet: bool, verbose: int) -> None:
    """Say so much from here on. What is verbose goes through `logging`, by loggers below `chunkform`."""
    _said["quiet"] |= quiet
    logger = logging.getLogger("chunkform")
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.handlers = [handler]
        logger.setLevel(min(logger.level or logging.CRITICAL, logging.DEBUG if verbose > 1 else logging.INFO))


def is_quiet() -> bool:
    """Did the caller ask for results alone?"""
    return _said["quiet"]


def hint(sentence: str) -> None:
    """Something that helps, and is no result: unless --quiet."""
    if not is_quiet():
        console().print(sentence, highlight=False, markup=False)


def wrote(*paths: Path | None) -> None:
    """The files that are there now, on stderr."""
    for path in paths if not is_quiet() else ():
        if path is not None:
            console(stderr=True).print(f"wrote {path}", highlight=False, markup=False)


def command(
    app: Typer, *examples: str, name: str | None = None, pages: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A command of the app that takes --quiet and --verbose as well, with examples and pages to read below its help."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*words: Any, quiet: bool = False, verbose: int = 0, **options: Any) -> Any:
            speak(quiet, verbose)
            return function(*words, **options)

        own = inspect.signature(function, eval_str=True)
        more = [
            inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
            inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose),
        ]
        parameters = [*own.parameters.values(), *more]
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__doc__ = paragraphs(function.__doc__ or "")
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        more_about = ["Documentation:", *map(page_of, pages)] if pages else []
        shown = "\n\n".join(["Examples:", *(escape(x) for x in examples), *more_about])
        app.command(name, epilog=shown, cls=Command)(run)
        return function

    return added


def paragraphs(doc: str) -> str:
    """A docstring with one line for each paragraph: the terminal breaks lines where it ends."""
    return "\n\n".join(" ".join(x.split()) for x in re.split(r"\n\s*\n", doc.strip()))


def plural(count: int, noun: str) -> str:
    """`1 claim`, `2 claims`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- how a command ends -----------------------------------------------------------------------------------------------


def short_of_memory(error: Exception) -> bool:
    """Python's own error, and torch's on any device."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "OutOfMemory" in type(error).__name__


def _unwritten(error: OSError) -> None:
    if error.filename is None:  # the output itself
        drop_output()
    say(f"can't read or write {error.filename or 'the output'}: {error.strerror or error}")


# --- streams ----------------------------------------------------------------------------------------------------------


def open_streams() -> None:
    """Streams that can be written to: those that are closed lead nowhere, and letters that they don't have are escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # or else the next file that is opened takes its place
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            if stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextlib.contextmanager
def quiet_on_failure() -> Iterator[None]:
    """Where the output can't be written, and that was said, Python shall not say so again."""
    try:
        yield
    except (OSError, ValueError):
        drop_output()


def drop_output() -> None:
    """Lead the rest of the output nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def said_in_ascii() -> bool:
    """Has the output letters of ASCII only?"""
    return "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


# --- what is printed --------------------------------------------------------------------------------------------------


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(stderr: bool = False) -> Console:
    """The terminal, as wide as it is or COLUMNS says; piped output isn't wrapped. It stays with the stream that there is now."""
    stream = sys.stderr if stderr else sys.stdout
    found = _Console(file=stream)
    columns = os.environ.get("COLUMNS", "")
    if (columns.isdigit() and int(columns)) or (found.is_terminal and not columns.isdigit()):
        return found
    return _Console(file=stream, width=80 if found.is_terminal else UNWRAPPED)


def warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours as one sentence; others as Python has them."""
    text = str(message)
    if not text.startswith("chunkform: "):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))
        return
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]warning:[/] {escape(text[11:])}")


def say(sentence: str) -> None:
    """`error: what is wrong`."""
    with contextlib.suppress(OSError):
        out = Console(stderr=True, highlight=False, soft_wrap=True)
        out.print(f"[bold red]error:[/] {escape(sentence)}")


def show_error(error: ChunkformError) -> None:
    """`error: what is wrong`, and below it the spec's own line."""
    where = getattr(error, "where", None)
    say(str(error).removeprefix(f"{where}: ") if where is not None else str(error))
    if where is not None:
        with contextlib.suppress(OSError):
            out = Console(stderr=True, highlight=False, soft_wrap=True)
            out.print(f"  {escape(str(getattr(where, 'place', where)))}", style="dim")
            if getattr(where, "text", ""):
                out.print(f"    {escape(where.text)}", style="cyan")


# --- files that are asked for; - is stdout ---------------------------------------------------------------------------


def writable(path: Path | None) -> None:
    """Refuse early what could not be written after the work is done."""
    if str(path) == "-" and sys.stdout.name == os.devnull:
        raise BuildError("can't write to stdout, which is closed")
    if path is not None and not path.absolute().parent.is_dir():
        raise BuildError(f"can't write {path}: there is no folder {path.parent}")
    if path is not None and path.is_dir():
        raise BuildError(f"can't write {path}: it is a folder")


def write_json(path: Path, data: Any) -> None:
    if str(path) == "-":
        sys.stdout.write(json.dumps(data, indent=1, ensure_ascii=said_in_ascii()) + "\n")
    else:
        write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def written(path: Path | None) -> Iterator[Path | None]:
    """A file to write to in the place of `path`; where that is -, its text goes to stdout afterwards."""
    writable(path)
    if str(path) != "-":
        yield path
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        yield file
        if file.exists():
            write_json(Path("-"), json.loads(file.read_text(encoding="utf-8")))
