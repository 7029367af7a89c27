"""Pass 6, emit: a compiled spec -> the text of its generated file."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from chunkform.errors import CompilerError, NameError_
from chunkform.runtime.op.version import release
from chunkform.spec.language import Declaration, Recurrence
from chunkform.version import __version__

from ..ir.expr import dim_of
from ..ir.launch_ir import NONE
from ..ir.letters import Alphabet, is_lettered, step_names
from ..ir.step_program import StepProgram
from ..ir.words import Definition, defined, joined, outside, text_of
from ..printing.code_passes import told
from ..printing.formatting import LINE, formatted
from ..printing.parameters import Parameter, constant, last_states, listed, options, result, tensor
from ..printing.spelling import spelled
from ..printing.stub import Results, Stub
from ..printing.templates import render
from .backends import Section, sections
from .chunkwise.compiled import Compiled
from .compiler_fault import blaming, blaming_with
from .docstring import docstring
from .notation.derivation import derivation_lines, formula_numbers
from .pipeline import OTHERWISE, PASSES, compile_spec, in_letters
from .step.lower import lower
from .stepwise.decode import MODULES as DECODE_IMPORTS
from .stepwise.decode import Decoding, decoding, public_step, step_parameters
from .triton import PLAN_PASSES

IN_CODE = (
    "In code, products of decays are called by what lies at their ends: m (in torch, decays) is from a write to a read, "
    "since from what enters the chunk to a read, until from a write to what leaves it, kept from what enters to what leaves. "
    "Statements cite the formulas above by their numbers."
)


AT_MARGIN = ("SIGNATURE", "OP")  # what every file defines beside its functions and the op


@blaming_with(compile_spec)
def emit(c: Compiled, tidy: bool = True) -> str:
    """The generated file of a spec, formatted where `tidy`."""
    with told(c.name, len(PASSES) + len(OTHERWISE), PLAN_PASSES):
        return _emitted(c, tidy)


def _emitted(c: Compiled, tidy: bool) -> str:
    alphabet = Alphabet.of(step_names(c.step))
    lettered = in_letters(c, alphabet)
    lettered = replace(lettered, numbers=formula_numbers(c))
    parts = sections(lettered)
    decodes = bool(c.step.states)  # what has no state does the same to one step as to many
    starts = "torch_start" in defined(y for x in parts for y in x.parts)
    step = decoding(lettered, has_start=starts) if decodes else Decoding((), NONE)
    made_by = Definition(step.step.words, is_function=False)
    backends = {x.backend: _backend(x) for x in parts}
    imported = imported_names((*parts, Section("step", (*step.parts, made_by), DECODE_IMPORTS)))
    others = other_names(c.name, imported)
    text = joined([*(x.parts for x in parts), step.parts])
    *body, made_by = (x.renamed(others) for x in spelled([*text, made_by], alphabet))
    check_name(c.spec, imported_as(imported, others), body)
    out = render(
        "recurrence/generated.py.jinja",
        title=escaped(title_of(c)),
        command=f"chunkform build {c.name}",
        hash=spec_hash(c),
        family=c.family,
        derivation=wrapped(derivation(c)),
        imports=import_lines(imported, others),
        body=text_of(body),
        signature=signature_text(c),
        options=", ".join(f"{p.name}={p.name}" for p in options(len(c.step.states))),
        backends=alphabet.read("{" + ", ".join(f'"{n}": {b}' for n, b in backends.items()) + "}"),
        step=made_by.text,
        public_step=public_step(c) if decodes else "",
        name=c.name,
        parameters=listed(parameters(c)),
        returned=returned(c),
        docstring=quoted(docstring(c, lettered)),
        given="{" + ", ".join(f'"{v.name}": {v.argument}' for v in c.step.variables) + "}",
    )
    return formatted(out) if tidy else out


def check_name(spec: Declaration, imported: Iterable[str], body: Iterable[Definition]) -> None:
    """Refuse an op that would take the place of what its file calls otherwise."""
    if {spec.name, f"{spec.name}_step"} & {*imported, *AT_MARGIN, *defined(body)}:
        raise NameError_(f"the name {spec.name!r} is reserved: choose another", spec.where)


def spec_hash(c: Compiled) -> str:
    """A hash of what the spec says, not of how its file is laid out."""
    return program_hash(c.step)


@blaming
def declared_hash(r: Recurrence) -> str:
    """The same before a pass has looked for better forms of what it says: no gate need run to find a file in the cache."""
    return program_hash(lower(r))


def program_hash(p: StepProgram) -> str:
    said = [p.name, repr(p.dims)]
    said += [repr((v.name, v.kind, v.axes, v.default)) for v in p.variables]
    said += [repr((v.name, v.domain)) for v in p.variables if v.domain is not None]
    said += [repr((s.name, s.axes, s.initial.key if s.initial is not None else "")) for s in p.states]
    said += [repr(("state", s.name, s.domain)) for s in p.states if s.domain is not None]
    said += [f"{n} {x.key}" for n, x in (*p.updates.items(), *p.outputs.items())]
    said += [f"wide {n}" for n in sorted(p.handed)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


# --- parts ----------------------------------------------------------------------------------------------------------


def derivation(c: Compiled) -> list[str]:
    """The step, its adjoint, its read-write form and its form over chunks as lines of text."""
    lines = derivation_lines(c)
    if c.forward is not None:
        lines += ["", IN_CODE]
    if c.reason:
        how = "Recurrent form" if c.entries is None else "Recurrent form over many segments of the sequence at once"
        how = "Some states take the recurrent form" if c.strata else how
        lines += ["", f"{how}, because {c.reason}"]
    return lines


def wrapped(lines: list[str]) -> list[str]:
    """Comment lines that fit the page."""
    out = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        while len(line) > LINE - 4:
            cut = line.rfind(" ", indent + 8, LINE - 4)
            if cut <= indent + 8:
                break
            out.append(line[:cut])
            line = " " * (indent + 4) + line[cut + 1 :]
        out.append(line)
    return out


def imported_names(parts: tuple[Section, ...]) -> dict[str, set[str]]:
    """What the sections need of each module; of torch and Triton, nothing but the module."""
    wanted: dict[str, set[str]] = {
        "chunkform.runtime.op.op": {"Op"},
        "chunkform.runtime.op.signature": {"Argument", "Backend", "Signature"},
    }
    everything: set[str] = {"torch"}  # which the public signature has
    for section in parts:
        used = outside(section.parts)
        everything |= used
        for module, names in section.modules.items():
            wanted.setdefault(module, set()).update(used & set(names.split()))
    for name, several in itertools.groupby(
        sorted((n, m) for m, names in wanted.items() for n in names), lambda x: x[0]
    ):
        if len(found := [m for _, m in several]) > 1:
            raise CompilerError(f"{name} of a generated file is imported from {' and from '.join(found)}")
    return {
        **({"torch": set()} if "torch" in everything else {}),
        **({"triton": set()} if "tl" in everything else {}),
        **{m: names for m, names in sorted(wanted.items()) if names},
    }


def import_lines(imported: dict[str, set[str]], others: dict[str, str]) -> str:
    """The lines; `others` are imported under other names."""
    lines = ["import torch"] if "torch" in imported else []
    lines += ["import triton", "import triton.language as tl"] if "triton" in imported else []
    lines += version_lines()
    for module, names in imported.items():
        if names:
            found = (f"{n} as {others[n]}" if n in others else n for n in sorted(names, key=_import_order))
            lines.append(f"from {module} import {', '.join(found)}")
    return "\n".join(lines)


def version_lines() -> list[str]:
    """What refuses the runtime of another version, before anything is imported from it."""
    return [
        "",
        "from chunkform.runtime.op.version import written_for",
        "",
        f'written_for("{release(__version__)}", __file__)',
        "",
    ]


def _import_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, as import lines are sorted."""
    return 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name


def other_names(name: str, imported: dict[str, set[str]]) -> dict[str, str]:
    """Other names for what is imported, where an op, or its step, is called so."""
    own = {name, f"{name}_step"}
    return {n: f"{n}_" for names in imported.values() for n in names & own}


def imported_as(imported: dict[str, set[str]], others: Mapping[str, str]) -> set[str]:
    """What is imported, by the names that a file has for it."""
    modules = [*(["torch"] if "torch" in imported else []), *(["triton", "tl"] if "triton" in imported else [])]
    return {"written_for", *modules, *(others.get(n, n) for names in imported.values() for n in names)}


def _backend(section: Section) -> str:
    features = "".join(f'"{x}", ' for x in section.features)
    told = f", frozenset(({features}))" if features else ""
    kinds = ("forward_states", "backward_states") if section.states else ()
    told += "".join(f", {kind}={section.backend}_{kind}" for kind in kinds)
    if section.saved is not None:
        told += f", saved={section.saved!r}"
        if section.backend == "triton":
            told += ", saved_packed=True"
    return f"Backend({section.backend}_forward, {section.backend}_backward{told})"


def parameters(c: Compiled) -> list[Parameter]:
    """What the op takes, in order."""
    tensors = [tensor(v.argument) for v in c.step.variables if v.kind != "constant"]
    numbers = [constant(v.name, v.default) for v in c.step.variables if v.kind == "constant"]
    return [*tensors, *options(len(c.step.states)), *sorted(numbers, key=lambda p: p.default is not None)]


def returned(c: Compiled) -> str:
    """The type of what the op returns."""
    return result(len(c.step.outputs), f"{last_states(len(c.step.states))} | None" if c.step.states else "None")


def stub(c: Compiled) -> Stub:
    """The op for the stub of the catalogue."""
    name, outputs = c.name, tuple(c.step.outputs)
    return Stub(
        name,
        escaped(title_of(c)),
        parameters(c),
        {False: Results(f"_{name}_result", outputs, "final_state")},
        states=last_states(len(c.step.states)) if c.step.states else None,
        step=(step_parameters(c), f"_{name}_step_result") if c.step.states else None,
    )


def signature_text(c: Compiled) -> str:
    p = c.step
    arguments = []
    for v in p.variables:
        default = "" if v.default is None else f", default={float(v.default)!r}"
        domain = "" if v.domain is None else f", domain={v.bounds!r}"
        arguments.append(f'Argument("{v.name}", "{v.kind}", {dims_text(v.axes)}{default}{domain}),')
    states = "".join(f'("{s.name}", {dims_text(s.axes)}),' for s in p.states)
    outputs = "".join(f'("{n}", {dims_text(axes)}),' for n, axes in p.output_axes.items())
    within = "".join(f'("{s.name}", {s.bounds!r}),' for s in p.states if s.domain is not None)
    domains = f", state_domains=({within})" if within else ""
    wide = f", wide=({''.join(f'{n!r},' for n in sorted(p.handed))})" if p.handed else ""
    return f'Signature(name="{c.name}", arguments=({"".join(arguments)}), states=({states}), outputs=({outputs}){wide}{domains})'


def dims_text(axes: tuple[str, ...]) -> str:
    inner = ", ".join(f'"{dim_of(a)}"' for a in axes)
    return f"({inner},)" if len(axes) == 1 else f"({inner})"


def title_of(c: Compiled) -> str:
    doc = (c.spec.doc or "").strip().splitlines()
    if not doc:
        return f"{c.name}, from its spec."
    return doc[0] if doc[0].startswith(f"{c.name}: ") else f"{c.name}: {doc[0]}"


def escaped(text: str) -> str:
    """A text as it stands between the quotes of a docstring that isn't raw: it says the same there, whatever is in it."""
    found = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return "".join(x if _stands(x) else x.encode("unicode_escape").decode() for x in found)


def _stands(x: str) -> bool:
    """May a letter stand in a docstring as it is?"""
    return x in "\n\t" or (x.isprintable() and not is_lettered(x))


def quoted(text: str) -> str:
    """A docstring that says a text: raw, as LaTeX is read best, where it can be."""
    plain = '"""' not in text and all(map(_stands, text))
    return f'r"""{text}"""' if plain else f'"""{escaped(text)}"""'
