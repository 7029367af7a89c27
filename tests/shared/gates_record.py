"""The record of gates that have passed (`passed.txt`): what `make test` needn't run where nothing of it has changed.

python tests/shared/gates_record.py             after `make test`: how many gates were asked, and how many of them ran
python tests/shared/gates_record.py --write     record those that take long, of all that this code has been asked
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from shared.passed import DIGITS, RECORD, RECORDED, ROOT, folder

SLOW = 0.01  # seconds of the processor from which a gate is recorded


def main() -> None:
    parser = argparse.ArgumentParser(description="which gates have passed, of those that take long")
    parser.add_argument("--write", action="store_true", help="write passed.txt anew")
    options = parser.parse_args()
    os.environ.setdefault("CHUNKFORM_CACHE", str(ROOT / "build" / "test-cache"))
    notes = {x.name: x.read_text() for x in folder().iterdir() if not x.suffix}
    recorded = {n for n, x in notes.items() if x == RECORDED}
    seconds = {n: float(x) for n, x in notes.items() if n not in recorded}
    slow = {n for n, x in seconds.items() if x >= SLOW}
    print(f"{len(notes)} gates asked: {len(recorded)} as recorded, {len(seconds)} run in {sum(seconds.values()):.0f} s")
    if options.write:
        RECORD.write_text("".join(f"{x}\n" for x in sorted({n[:DIGITS] for n in recorded | slow})))
        print(f"{len(recorded | slow)} recorded, {len(slow)} of them new")


if __name__ == "__main__":
    main()
