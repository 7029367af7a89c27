"""Where a benchmark writes: places are made, and tried, before the work and not after it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import typer


class Unwritable(typer.BadParameter, argparse.ArgumentTypeError):
    """Both kinds of parsers print it beside the argument's name."""


def folder(said: str) -> Path:
    """A folder of this name; for parsers of arguments, which say what is wrong with it."""
    path = Path(said)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(f"there can be no folder {said}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise Unwritable(f"the folder {said} can't be written to")
    return path


def file(said: str) -> Path:
    """A file of this name, in a folder that is there."""
    path = Path(said)
    folder(str(path.parent))
    if path.is_dir():
        raise Unwritable(f"{said} is a folder")
    return path


def file_or_stdout(said: str) -> Path:
    """A file, or - for stdout."""
    return Path(said) if said == "-" else file(said)
