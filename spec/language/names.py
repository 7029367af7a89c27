"""The names that a spec's author gives: which there can be. Python's rules, in Python's spelling (NFKC), and a few more."""

from __future__ import annotations

import builtins
import keyword
import unicodedata

from chunkform.errors import NameError_

from .source import Source, caller

LONGEST = 100
FUNCTION_NAMES = frozenset("exp log sqrt sin cos tanh erf sigmoid softplus diag eye hadamard".split())
PRINTED = range(0x14400, 0x14500)  # letters in which the compiler prints a spec's names before it spells them
# What the file of an op calls its own, beside functions whose names begin as in `OF_FUNCTIONS`.
OF_FILES = frozenset(
    "torch triton tl OP SIGNATURE ARGUMENTS KERNELS WHY Op Backend Signature Argument Step StepKernel RowKernel AttentionOp "
    "AttentionSignature AttentionArgument AttentionBackend Maps Moved After Kernels attention_torch".split()
)
OF_FUNCTIONS = ("torch_", "triton_", "forward_", "backward_", "step_", "substep_", "default_", "moved_")


def quantity_name(name: object, where: Source | None = None) -> str:
    """The name of something in a spec, as Python spells it.

    Raises:
        NameError_: it can't be one.
    """
    where = where or caller()
    if not isinstance(name, str):
        raise NameError_(f"a name must be a string, got {name!r}", where)
    found = unicodedata.normalize("NFKC", name)
    if not found.isidentifier() or keyword.iskeyword(found) or found.startswith("_") or found.endswith("_"):
        raise NameError_(f"{name!r} can't be a name here: use a Python identifier without outer underscores", where)
    _letters(found, where)
    return found


def spec_name(name: object, what: str, where: Source | None = None) -> str:
    """The name of a whole spec, which is that of its op.

    Raises:
        NameError_: it can't be one.
    """
    article = "an" if what[0] in "aeiou" else "a"
    if not isinstance(name, str):
        raise NameError_(f"{article} {what}'s name must be a Python identifier, got {name!r}", where)
    found = unicodedata.normalize("NFKC", name)
    if keyword.iskeyword(found):
        raise NameError_(
            f"{article} {what} can't be named {name!r}, which is a keyword of Python: choose another", where
        )
    if not found.isidentifier():
        raise NameError_(f"{article} {what}'s name must be a Python identifier, got {name!r}", where)
    if found in OF_FILES or found in dir(builtins) or found.startswith(("__", *OF_FUNCTIONS)):
        raise NameError_(f"the name {name!r} is reserved: choose another", where)
    _letters(found, where)
    return found


def _letters(name: str, where: Source | None) -> None:
    if len(name) > LONGEST:
        raise NameError_(f"a name has at most {LONGEST} letters, got {len(name)}: {name[:20]}...", where)
    if other := next((x for x in name if ord(x) in PRINTED), None):
        raise NameError_(f"the letter {other!r} of {name!r} is the compiler's own: choose another", where)


def split_names(names: object, what: str = "") -> list[str]:
    """The names in a string such as 'q k', as Python spells them."""
    if not isinstance(names, str) or not names.replace(",", " ").split():
        told = f" ({what})" if what else ""
        raise NameError_(f"names are given in one string, such as 'q k'; got {names!r}{told}", caller())
    return names.replace(",", " ").split()
