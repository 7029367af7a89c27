"""The last step of printing: code whose names of the spec are in letters of their own (`letters.py`) -> the same, as it is read.

A name keeps the spec's spelling, in ASCII, where nothing else in its function is called so, and gets an underscore where
something is. Strings are the keys of what an op is given and gives, and have the spec's names as they are. At last the two texts
are compared, word by word: in each function every name must stand for one name, and for the same one throughout.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from chunkform.errors import BuildError

from ..ir.expr import plain_name
from ..ir.letters import RUN, Alphabet, is_lettered

TEXT = r'(?P<text>r?""".*?"""|r?"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*)'  # strings and comments
TOKEN = re.compile(TEXT + r"|(?P<dot>\.\s*)?(?P<name>[^\W\d]\w*)(?P<key>\s*=(?!=))?|[()\[\]{}]", re.DOTALL)
TO_SPELL = re.compile(rf"{TEXT}|\b[A-Za-z0-9_]*{RUN.pattern}\w*", re.DOTALL)
# what Triton's launches take beside a kernel's own arguments, and what they call these in functions that they make of their names
LAUNCHES = frozenset(
    "arch args backend backend_name debug device device_type enable_fp_fusion enable_reflect_ftz extern_libs fn grid "
    "instrumentation_mode ir_override kernel kwargs launch_cooperative_grid launch_pdl maxnreg num_ctas num_stages num_warps "
    "options params ptx_options ptx_version sanitize_overflow self specialization specialize_impl stream warmup warp_size".split()
)
NEVER = LAUNCHES | set(keyword.kwlist) | set(keyword.softkwlist) | set(dir(builtins))


@dataclass
class Scope:
    """A function of the text with its decorators, or statements between two functions. `lettered` are the names in it that the
    spec has given, `others` all others; `shared` those of arguments that calls name, and of what stands outside of functions."""

    start: int
    inside: bool = False
    lettered: dict[str, None] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)


def spelled(text: str, alphabet: Alphabet) -> str:
    """The code as it is read."""
    if text.isascii():
        return text
    if unknown := alphabet.unknown(text):
        raise BuildError(f"the compiler is at fault: it has joined names of the spec to {plain_name(unknown)}")
    scopes = list(_scopes(text))
    everywhere: dict[str, str] = {}
    for name in dict.fromkeys(n for x in scopes for n in x.shared):
        others = set().union(*(x.others for x in scopes if name in x.lettered))
        everywhere[name] = _free(name, others | set(everywhere.values()))
    out = []
    outside: Pairs = {}, {}
    for x, following in zip(scopes, [*scopes[1:], None], strict=True):
        names = {n: everywhere[n] for n in x.lettered if n in everywhere}
        taken = x.others | set(names.values())
        for n in x.lettered:
            if n not in names:
                names[n] = _free(n, taken)
                taken.add(names[n])
        part = text[x.start : None if following is None else following.start]
        if x.inside and part.isascii():
            out.append(part)
            continue
        out.append(TO_SPELL.sub(lambda m: _token(m, names, alphabet), part))  # noqa: B023
        check_spelled(part, out[-1], ({}, {}) if x.inside else outside)
    return "".join(out)


def with_names(text: str, names: dict[str, str]) -> str:
    """The code with other names for what stands outside of its functions."""
    if not names:
        return text

    def token(m: re.Match[str]) -> str:
        if m["name"] not in names or m["dot"]:
            return m[0]
        return names[m["name"]] + (m["key"] or "")

    return TOKEN.sub(token, text)


def _free(name: str, taken: set[str]) -> str:
    found = plain_name(name)
    while found in taken or found in NEVER:
        found += "_"
    return found


def _token(m: re.Match[str], names: dict[str, str], alphabet: Alphabet) -> str:
    return names.get(m[0], m[0]) if m["text"] is None else alphabet.read(m[0])


def _scopes(text: str) -> Iterator[Scope]:
    """The functions of a text and what stands between them, in order."""
    x = Scope(0)
    depth, decorated = 0, False
    for m in TOKEN.finditer(text):
        if m[0] in "([{":
            depth += 1
        elif m[0] in ")]}":
            depth -= 1
        elif m["name"] is not None:
            decorator = text[m.start() - 1 : m.start()] == "@"
            first = depth == 0 and text.rfind("\n", 0, m.start()) == m.start() - 1 - decorator
            if first:
                if not decorated:
                    yield x
                    x = Scope(m.start() - decorator)
                x.inside, decorated = m["name"] in ("def", "class"), decorator
            _note(x, m, depth, text)
    yield x


def _note(x: Scope, m: re.Match[str], depth: int, text: str) -> None:
    name = m["name"]
    if not is_lettered(name):
        if not m["dot"]:
            x.others.add(name)
        return
    x.lettered[name] = None
    of_all = not x.inside or text.endswith(("\ndef ", "\nclass "), 0, m.start())
    if of_all or m["dot"] or (m["key"] and depth):
        x.shared.add(name)


# --- the comparison ---------------------------------------------------------------------------------------------------

Pairs = tuple[dict[str, str], dict[str, str]]  # the name as it is read by the one in letters, and back


def check_spelled(lettered: str, found: str, known: Pairs) -> None:
    """Refuse a spelling of a function by which two names have become one, or one two. `known` are the pairs of what belongs
    together, such as all that stands outside of functions."""
    before, after = TOKEN.findall(lettered), TOKEN.findall(found)
    if len(before) != len(after):
        raise BuildError("the compiler is at fault: names of the spec have changed the code")
    there, back = known
    for attribute, a, b in {(x[1] != "", x[2], y[2]) for x, y in zip(before, after, strict=True)}:
        if attribute and a == b:  # of something that isn't the spec's
            continue
        if there.setdefault(a, b) != b or back.setdefault(b, a) != a or (a != b and not is_lettered(a)):
            raise BuildError(f"the compiler is at fault: the name {b} stands for two things in the generated file")
