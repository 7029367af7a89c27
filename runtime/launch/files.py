"""Files that are written whole or not at all, and the folder of what is kept between runs."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

from chunkform.errors import BuildError

_log = logging.getLogger(__name__)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see the old text or the new one; where that fails, nothing is left behind.

    Raises:
        BuildError: it can't be written, for the reason that the system gives.
    """
    path = Path(path)
    try:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG | 0o644
        if not stat.S_ISREG(mode) or _only_in_place(path):  # such as /dev/stdout, which nothing takes the place of
            with path.open("w", encoding="utf-8") as file:
                file.write(text)
            return
        _replace(Path(os.path.realpath(path)), text, stat.S_IMODE(mode))
        _log.info("wrote %s", path)
    except (OSError, ValueError) as error:  # ValueError: a path or a text that no encoding takes
        raise BuildError(f"can't write {path}: {getattr(error, 'strerror', None) or error}") from error


def _only_in_place(path: Path) -> bool:
    """May the file be written, but not its folder?"""
    return path.exists() and os.access(path, os.W_OK) and not os.access(path.absolute().parent, os.W_OK)


def _replace(path: Path, text: str, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def folder_made(path: Path) -> None:
    """Make a folder, and those that it is in.

    Raises:
        BuildError: there can be none, for the reason that the system gives.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BuildError(f"can't write to {path}: it isn't a folder") from error
    except (OSError, ValueError) as error:
        raise BuildError(f"can't make the folder {path}: {getattr(error, 'strerror', None) or error}") from error


def removed_at_exit(prefix: str) -> Path:
    """A temporary folder that lasts as long as the process."""
    folder, process = tempfile.mkdtemp(prefix=prefix), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # and not in a fork of it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


# --- what is kept between runs ----------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """$CHUNKFORM_CACHE, or chunkform/ in the user's cache directory."""
    chosen = os.environ.get("CHUNKFORM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "chunkform"


@functools.cache
def cache_instead(folder: Path, reason: str) -> Path:
    """A temporary folder in the place of a cache folder that can't be written to, with one warning."""
    warnings.warn(
        f"chunkform: the cache folder can't be used ({reason}); what is compiled now is kept in a temporary folder, as long as "
        f"this process lasts: set CHUNKFORM_CACHE to a folder that can be written to (it is {folder} now)",
        stacklevel=2,
    )
    return removed_at_exit("chunkform_cache_")
