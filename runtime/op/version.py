"""A generated file and the runtime that it calls are of one version: what an op is made of may change in the next."""

from __future__ import annotations

from chunkform.errors import VersionError
from chunkform.version import __version__


def written_for(version: str, file: str) -> None:
    """Refuse a generated file of another version, before it looks for what this runtime may not have. Patches don't count."""
    here = release(__version__)
    if version != here:
        raise VersionError(
            f"{file} was written by chunkform {version}, and chunkform {here} is installed, whose runtime differs: write "
            f"it anew with the command in its first lines, or install chunkform {version}"
        )


def release(version: str) -> str:
    """`major.minor` of a version."""
    return ".".join(version.split(".")[:2])
