"""Checks of `bits` on Triton kernels in Triton's interpreter, which has to be chosen before Triton is imported.

TRITON_INTERPRET=1 python bits_interpreted.py '["lightning_attention"]'   # prints what differs, by op and check, as JSON
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from shared.bits import Case, differing, later_steps, no_state, once_more, problem, replace, run, sequence

OWN = {"backend": "triton"}


def main(names: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    return {name: checks(name) for name in names}


def checks(name: str) -> dict[str, dict[str, float]]:
    at = Case(40, batch=1, heads=1, widths=(16, 20))
    p, other = problem(name, at), problem(name, replace(at, seed=1))
    packed = problem(name, replace(at, lengths=(5, 0, 36)))
    alone, whole = run(sequence(packed, 2), deterministic=True, **OWN), run(packed, deterministic=True, **OWN)
    of_third = {n: x[2:3] if n.startswith(("final ", "d initial ")) else x[:, 5:] for n, x in whole.items()}
    return {
        "later steps": later_steps(p, other, 20, **OWN),
        "no state": no_state(p, **OWN),
        "once more": once_more(p, **OWN),
        "packed": differing(of_third, alone),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
