"""The last step of printing: code whose names of the spec are in letters of their own (`letters.py`) -> the same, as it is read.

A name keeps the spec's spelling, in ASCII, where nothing else in its function is called so, and gets an underscore where
something is. Strings are the keys of what an op is given and gives, and have the spec's names as they are. At last the two
are compared, word by word: in each function every name must stand for one name, and for the same one throughout.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

from chunkform.errors import BuildError

from ..ir.expr import plain_name
from ..ir.letters import Alphabet, is_lettered
from ..ir.words import Default, Defined, Definition, Definitions, Keyword, Member, Said, Word, Words, named

# what Triton's launches take beside a kernel's own arguments, and what they call these in functions that they make of their names
LAUNCHES = frozenset(
    "arch args backend backend_name debug device device_type enable_fp_fusion enable_reflect_ftz extern_libs fn grid "
    "instrumentation_mode ir_override kernel kwargs launch_cooperative_grid launch_pdl maxnreg num_ctas num_stages num_warps "
    "options params ptx_options ptx_version sanitize_overflow self specialization specialize_impl stream warmup warp_size".split()
)
NEVER = LAUNCHES | set(keyword.kwlist) | set(keyword.softkwlist) | set(dir(builtins))
BY_ALL = (Defined, Member, Keyword, Default)  # names that other functions have as well


def spelled(some: Iterable[Definition], alphabet: Alphabet) -> Definitions:
    """The code as it is read."""
    scopes = [_Scope(x) for x in some]
    if unknown := next((y for x in scopes if x.lettered for y in [alphabet.unknown(x.of.text)] if y), None):
        raise BuildError(f"the compiler is at fault: it has joined names of the spec to {plain_name(unknown)}")
    everywhere: dict[str, str] = {}
    for name in dict.fromkeys(n for x in scopes for n in x.shared):
        others = set[str]().union(*(x.others for x in scopes if name in x.lettered))
        everywhere[name] = _free(name, others | set(everywhere.values()))
    outside: Pairs = {}, {}
    return tuple(_spelled(x, everywhere, alphabet, ({}, {}) if x.of.is_function else outside) for x in scopes)


class _Scope:
    """A definition: `lettered` are the names in it that the spec has given, `others` all others; `shared` those of arguments that
    calls name, and of what stands outside of functions."""

    def __init__(self, x: Definition) -> None:
        names = [y for y in x.words if isinstance(y, Word) and not isinstance(y, Said)]
        own = [] if x.text.isascii() else [y for y in names if is_lettered(y)]
        self.of = x
        self.lettered = dict.fromkeys(map(str, own))
        self.others = {str(y) for y in names if not isinstance(y, Member)} - self.lettered.keys()
        self.shared = dict.fromkeys(str(y) for y in own if not x.is_function or isinstance(y, BY_ALL))


def _spelled(x: _Scope, everywhere: dict[str, str], alphabet: Alphabet, known: Pairs) -> Definition:
    if x.of.text.isascii():
        return x.of
    names = {n: everywhere[n] for n in x.lettered if n in everywhere}
    taken = x.others | set(names.values())
    for n in x.lettered:
        if n not in names:
            names[n] = _free(n, taken)
            taken.add(names[n])
    found = Definition(tuple(_word(y, names, alphabet) for y in x.of.words), x.of.is_function)
    check_spelled(x.of.words, found.words, known)
    return found


def _free(name: str, taken: set[str]) -> str:
    found = plain_name(name)
    while found in taken or found in NEVER:
        found += "_"
    return found


def _word(x: str, names: dict[str, str], alphabet: Alphabet) -> str:
    if isinstance(x, Word) and not isinstance(x, Said):
        return named(x, names[x]) if x in names else x
    return x if x.isascii() else type(x)(alphabet.read(x))


# --- the comparison ---------------------------------------------------------------------------------------------------

Pairs = tuple[dict[str, str], dict[str, str]]  # the name as it is read by the one in letters, and back


def check_spelled(lettered: Words, found: Words, known: Pairs) -> None:
    """Refuse a spelling of a function by which two names have become one, or one two. `known` are the pairs of what belongs
    together, such as all that stands outside of functions."""
    if list(map(type, lettered)) != list(map(type, found)):
        raise BuildError("the compiler is at fault: names of the spec have changed the code")
    there, back = known
    for x, y in zip(lettered, found, strict=True):
        if (
            not isinstance(x, Word) or isinstance(x, Said) or (isinstance(x, Member) and x == y)
        ):  # of what isn't the spec's
            continue
        a, b = str(x), str(y)
        if there.setdefault(a, b) != b or back.setdefault(b, a) != a or (a != b and not is_lettered(a)):
            raise BuildError(f"the compiler is at fault: the name {b} stands for two things in the generated file")
