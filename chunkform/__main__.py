"""The program `chunkform`, and `python -m chunkform`, for where it isn't on the path."""

from __future__ import annotations

import sys

from .supervised import INTERRUPTED, supervised


def main() -> None:
    """Run the command line, and say so where something ends it without a word."""
    supervised(program)


def program() -> None:
    """Run the command line. It can be interrupted while its modules are still imported, too."""
    try:
        from chunkform.codegen.commands.cli import app

        app(prog_name="chunkform")
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
