"""What is printed is true: every formula of a derivation is read back, evaluated with numbers, and compared with the oracle."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from shared import spec_files
from shared.structures import few_of

from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.explain import section_text
from chunkform.codegen.recurrence.notation.derivation import derivation
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.adjoint import gradient_name
from chunkform.codegen.recurrence.step.frames import begins_with
from chunkform.spec.language import Max, Recurrence, absolute, dot, find, normalize, sigmoid

from .reading import read, read_indexed

STEPS = 4
WITHOUT_FORM = ("sequential", "segment-parallel", "scan", "strata")  # of their own; strata have theirs
EXAMPLE = Path(__file__).parents[4] / "examples" / "my_recurrence.py"


def normalised() -> Recurrence:
    """Two states, one of them a vector; a quotient."""
    r = Recurrence("normalised")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S, z = r.state("S", d, e), r.state("z", d)
    r.update(S, S.prev + k * v.T)
    r.update(z, z.prev + k)
    r.output("o", S.next.T * q / (2 + dot(z.next, q) ** 2))
    return r


def two_writes() -> Recurrence:
    """A write that reads the state and one that doesn't, a parameter, an output of the state before the step."""
    r = Recurrence("two_writes")
    d, e = r.dims("d e")
    q, k, x = r.inputs("q k x", d)
    v, y = r.inputs("v y", e)
    u = r.parameter("u", d)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    key = r.let("key", normalize(k))
    r.update(S, lam * S.prev + key * (v - S.prev.T * key).T + 2 * x * y.T)
    r.output("o", S.prev.T * q + dot(u, k) * v)
    return r


# In oja_subspace no argument has the state's second dim, so that the oracle can't tell its size.
LITERATURE = sorted(f for f in (Path(__file__).parents[2] / "specs").glob("*.py") if f.stem != "oja_subspace")
SPECS = [
    *spec_files.catalogue(),
    *find(str(EXAMPLE)),
    normalised(),
    two_writes(),
    *(r for f in LITERATURE for r in spec_files.read(f)),
]


class Run:
    """Random arguments of a recurrence for a few steps, and the oracle's results, by printed name and step."""

    def __init__(self, c: Compiled) -> None:
        self.c = c
        p = c.step
        g = torch.Generator().manual_seed(1)
        self.sizes = {d: 2 + i for i, d in enumerate(p.dims)}

        def normal(*lead: int, axes: tuple[str, ...]) -> torch.Tensor:
            return torch.randn(*lead, *(self.sizes[dim_of(a)] for a in axes), generator=g, dtype=torch.float64) / 2

        given = {}
        constants = {
            v.name: 0.7 if v.default is None else float(v.default) for v in p.variables if v.kind == "constant"
        }
        for v in (v for v in p.variables if v.kind != "constant"):
            x = normal(*((1, STEPS, 1) if v.per_step else (1,)), axes=v.axes)
            given[v.name] = -x.abs() if v.is_decay else x
        states = {s.name: normal(1, 1, axes=s.axes) for s in p.states}
        for s in p.states:
            if s.initial is not None and len(s.axes) == 2:  # such as the identity: near to what the spec starts from
                states[s.name] = states[s.name] / 4 + torch.eye(*states[s.name].shape[2:])
        cotangents = {n: normal(1, STEPS, 1, axes=axes) for n, axes in p.output_axes.items()}
        finals = {s.name: normal(1, 1, axes=s.axes) for s in p.states}
        outputs, last, gradients, initial = oracle(c, given, states, constants, cotangents, finals)

        self.step_matrices: dict[str, tuple[list[str], dict[int, np.ndarray]]] = {}
        self.values: dict[tuple[str, str], np.ndarray] = {}
        self.values |= {(n, ""): np.array([[x]]) for n, x in (*constants.items(), *self.sizes.items())}
        for v in (v for v in p.variables if v.kind != "constant"):
            x = given[v.name].exp() if v.is_decay else given[v.name]
            for name, y in ((v.name, x), (gradient_name(v).replace("dlog_", "dlog "), gradients[v.name])):
                self.keep(name, y[0, :, 0] if v.per_step else y[0], v.per_step)
        for n, x in (*outputs.items(), *((f"d{n}", x) for n, x in cotangents.items())):
            self.keep(n, x[0, :, 0], True)
        self.last = {s: column(x[0, 0]) for s, x in last.items()}
        self.final = {f"d{s}": column(x[0, 0]) for s, x in finals.items()}
        for s in p.states:
            self.values[s.name, "0"] = column(states[s.name][0, 0])
            self.expected_initial = {f"d{n}": column(x[0, 0]) for n, x in initial.items()}

    def keep(self, name: str, x: torch.Tensor, per_step: bool) -> None:
        if per_step:
            for t in range(STEPS):
                self.values[name, str(t + 1)] = column(x[t])
        else:
            self.values[name, ""] = column(x)

    def lookup(self, t: int, beyond: bool = False):
        """Values as seen from step t. With `beyond`, what comes after the last step is zero."""

        def look(name: str, below: str) -> np.ndarray:
            if name == "I":
                return np.eye(self.sizes[self.c.step.dims[0]])
            if name == "steps of":
                relation = below[1:].strip().removesuffix("t").strip()
                return np.array([s for s in range(1, STEPS + 1) if not relation or eval(f"{s} {relation} {t}")])
            if "," in below:  # k_{2,t}: the name k2, or k_2
                head, below = below.rsplit(",", 1)
                base = name.rstrip("+'")
                name = (f"{base}{head}" if head.isdigit() else f"{base}_{head}") + name[len(base) :]
            if (f"{name}_{below}", "") in self.values:
                name, below = f"{name}_{below}", ""
            step = re.sub(r"^t\b", str(t), below)
            step = str(STEPS) if step == "n" else str(eval(step)) if step and not step.isalpha() else step
            if (
                beyond and step == str(STEPS + 1) and (name, step) not in self.values
            ):  # gradients are zero there; what else there is doesn't matter
                base = name.rstrip("+")
                gradient = base[:1] == "d" and (base[1:], str(STEPS)) in self.values
                return 0 * self.values[base[1:], str(STEPS)] if gradient else self.values[base, str(STEPS)]
            return self.values[name, step]

        return look

    def knows(self, name: str) -> bool:
        return (name, "1") in self.values or (name, "") in self.values

    def matrix(self, name: str) -> np.ndarray:
        """A quantity over the steps of the chunk: rows of vectors, a column of scalars."""
        whole = name.replace("_", "")  # K_2 holds k2
        small = next(n for n in (name, name[:-1] + name[-1].lower(), whole[:-2] + whole[-2:].lower()) if self.knows(n))
        if (small, "") in self.values:
            return self.values[small, ""]
        return np.concatenate([self.values[small, str(t)].T for t in range(1, STEPS + 1)])


def column(x: torch.Tensor) -> np.ndarray:
    return x.numpy().reshape(x.shape[0] if x.ndim else 1, -1)


def sides(line: str) -> tuple[str, str, str]:
    """(name on the left, what stands below it, the right side)."""
    left, _, right = line.partition(" = ")
    found = re.fullmatch(r"((?:dlog )?[A-Za-z]+'*)(?:_(?:\{([^}]*)\}|(\w)))?('*)(\^\+)?", left)
    assert found, f"can't read the left side of {line!r}"
    name, below = found[1], found[2] or found[3] or ""
    if "," in below:
        head, below = below.rsplit(",", 1)
        name = f"{name}{head}" if head.isdigit() else f"{name}_{head}"
    return name + found[4] + ("+" if found[5] else ""), below, right


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(np.broadcast_to(a, b.shape) if a.size == 1 else a, b, rtol=1e-9, atol=1e-11)


FEW = few_of(tuple(r.name for r in SPECS))


@pytest.fixture(
    scope="module",
    params=[r if r.name in FEW else pytest.param(r, marks=pytest.mark.long) for r in SPECS],
    ids=lambda r: r.name,
)
def case(request) -> tuple[Run, dict[str, list[str]]]:
    c = spec_files.compiled_once(request.param)
    run = Run(c)
    sections = {s.title: [f.plain for f in s.formulas if not f.text] for s in derivation(c)}
    check_recurrence(run, sections["The recurrence"])
    check_adjoint(run, sections["Its adjoint"])
    return run, sections


def check_recurrence(run: Run, lines: list[str]) -> None:
    """Forward, step by step; gives the run its states and auxiliary quantities."""
    for t in range(1, STEPS + 1):
        for line in lines:
            name, below, right = sides(line)
            if below == "0":
                continue  # the spec's own initial value, which this run replaces
            value = read(right, run.lookup(t))
            if (name, str(t)) in run.values:
                assert close(value, run.values[name, str(t)]), f"{line} at step {t}"
            run.values[name, str(t)] = value
    for name, value in run.last.items():
        assert close(run.values[name, str(STEPS)], value), f"the last {name}"


def check_adjoint(run: Run, lines: list[str]) -> None:
    """Backward: gradients of states and auxiliary quantities are found, those of the arguments compared."""
    for name, below, right in map(sides, lines):  # terms that several formulas share, beyond the last step
        if below == "t" and not name.startswith("d"):
            run.values[name, str(STEPS + 1)] = read(right, run.lookup(STEPS + 1, beyond=True))
    for t in range(STEPS, 0, -1):
        waiting = [x for x in map(sides, lines) if x[1] == "t"]
        while waiting:
            left: list[tuple[str, str, str]] = []
            for name, below, right in waiting:
                try:
                    value = read(right, run.lookup(t, beyond=True))
                except KeyError:
                    left.append((name, below, right))
                    continue
                if t == STEPS and name.rstrip("+") in run.final:
                    value = value + run.final[name.rstrip("+")]
                if (name, str(t)) in run.values:
                    assert close(value, run.values[name, str(t)]), f"{name}_t = {right} at step {t}"
                run.values[name, str(t)] = value
            assert len(left) < len(waiting), f"can't evaluate {left}"
            waiting = left
    for line in lines:
        name, below, right = sides(line)
        if below == "0":
            assert close(read(right, run.lookup(1)), run.expected_initial[name]), line
            run.values[name, "0"] = run.expected_initial[name]
        elif below == "":
            assert close(read(right, run.lookup(0)), run.values[name, ""]), line


def test_the_recurrence_and_its_adjoint(case):
    run, sections = case
    arguments = [gradient_name(v).replace("dlog_", "dlog ") for v in run.c.step.variables if v.kind != "constant"]
    printed = {x for line in sections["Its adjoint"] for x in (sides(line)[0], "_".join(sides(line)[:2]))}
    assert set(arguments) <= printed


def settle(run: Run, lines: list[str], t: int) -> None:
    """Evaluate formulas at step t, each when it can be; compare what is known already."""
    waiting = list(lines)
    while waiting:
        left = []
        for line in waiting:
            name, below, right = sides(line)
            at = str(t if below == "t" else t - 1)
            try:
                value = read(right, run.lookup(t))
            except KeyError:
                left.append(line)
                continue
            assert (name, at) not in run.values or close(value, run.values[name, at]), f"{line} at step {t}"
            run.values.setdefault((name, at), value)
        assert len(left) < len(waiting), f"can't evaluate {left}"
        waiting = left


def test_the_read_write_forms(case):
    run, sections = case
    if run.c.family in WITHOUT_FORM and "Read-write form" not in sections:
        pytest.skip("has none")
    for section in ("Read-write form", "Read-write form of the adjoint"):
        assert len(set(sections[section])) == len(sections[section]), "what two states share is said once"
    for t in range(1, STEPS + 1):
        settle(run, sections["Read-write form"], t)
    lines = sections["Read-write form of the adjoint"]
    for name, x in run.final.items():
        run.values[f"{name}+", str(STEPS)] = x
    known = [x for x in lines if re.match(r"(dlog )?[A-Za-z]+_(t|\{(\w+,)?t(-1)?\})'*(\^\+)? = ", x)]
    for t in range(STEPS, 0, -1):
        settle(run, known, t)
        for name in run.final:  # without a line of its own: what comes from later steps is all there is
            run.values.setdefault((f"{name}+", str(t - 1)), run.values[name, str(t)])
    for line in (x for x in lines if x not in known):
        left, _, right = line.partition(" = ")
        for t in range(1, STEPS + 1):
            assert close(read(right, run.lookup(t)), read(left, run.lookup(t))), f"{line} at step {t}"


def test_the_strata_forward(case):
    run, sections = case
    strata = [x for x in sections if re.fullmatch(r"Stratum \d+", x)]
    if not strata:
        pytest.skip("has none")
    if run.c.frame is not None:  # in which states have other values than the step's
        run = Run(run.c)
    for s in (s for part in run.c.strata for s in part.compiled.step.states):
        shape = [run.sizes[dim_of(a)] for a in s.axes] + [1] * (2 - len(s.axes))
        run.values.setdefault((s.name, "0"), np.full(shape, float(begins_with(s))))
    for t in range(1, STEPS + 1):
        for title in strata:
            parts = (title, f"{title}: maps that compose", f"{title}: read-write form")
            settle(run, [line for x in parts for line in sections.get(x, ())], t)
    for line in sections.get("Last states", ()):
        left, _, right = line.partition(" = ")
        state = left.removesuffix("_t")
        assert close(read(right, run.lookup(STEPS)), run.last[state]), line


def test_the_form_over_a_chunk(case):
    run, sections = case
    if run.c.family in WITHOUT_FORM and "Read-write form" not in sections:
        pytest.skip("has none")
    test_the_read_write_forms(case)  # gives the run the quantities that a chunk is made of
    known: dict[str, np.ndarray] = {}
    for line in sections.get("Products of decays in a chunk", ()):
        known |= define_matrices(run, line) if "..." in line or "[" in line else dict([define(run, line)])
    for s in run.c.step.states:
        known[f"{s.name}_0"], known[f"d{s.name}_C"] = run.values[s.name, "0"], run.final[f"d{s.name}"]

    def look(name: str, below: str) -> np.ndarray:
        whole = f"{name}_{below}" if below else name
        if whole == "I":
            return np.eye(STEPS)
        if whole == "C" and not {"c", "C"} & {v.name for v in run.c.step.variables if v.per_step}:
            return np.array([[float(STEPS)]])
        if whole in run.sizes:
            return np.array([[float(run.sizes[whole])]])
        return known[whole] if whole in known else run.matrix(whole)

    for title in ("forward", "backward"):
        for line in sections[f"Over a chunk of C steps, {title}"]:
            check_line(run, line, known, look)


def define(run: Run, line: str) -> tuple[str, np.ndarray]:
    """`M_{ij} = prod_{j < s <= i} lam_s  for j <= i, else 0` and the like, as the product that they say."""
    left, _, right = line.partition(" = ")
    name = left.split("_")[0]
    where = (found := re.search(r"  for (.*), else 0", right)) and found[1]
    product = re.match(r"prod_(?:\{([^}]*)\}|s) (.*?)(?:  for|$)", right)

    def value(**index: int) -> np.ndarray:
        total = np.ones((1, 1))
        for s in range(1, STEPS + 1) if product else ():
            if product[1] is None or eval(product[1], {"s": s, **index}):
                at = re.sub(r"(?<=[_,])s\b", str(s), product[2])
                total = total * read(at, run.lookup(0))
        return total * (1 if where is None or eval(where, index) else 0)

    steps = range(1, STEPS + 1)
    if left.endswith("_C"):
        return left, value()
    if left.endswith("_{ij}"):
        grid = even([value(i=i, j=j) for i in steps for j in steps]).reshape(STEPS, STEPS, -1)
        return name, grid[..., 0] if grid.shape[-1] == 1 else grid
    return name, even([value(**{left[-1]: i}) for i in steps])


def define_matrices(run: Run, line: str) -> dict[str, np.ndarray]:
    """`A_t = [mu_t, 0; mu_t, lam_t]   (of V, S)`, and `M_{ij,XY} = (A_{i-1} ... A_{j+1})_{XY}  for j < i, else 0`."""
    left, _, right = line.partition(" = ")
    if found := re.fullmatch(r"\[(.*)\]   \(of (.*)\)", right):
        rows = [row.split(", ") for row in found[1].split("; ")]
        value = {
            t: np.array([[read(x, run.lookup(t)).item() for x in row] for row in rows]) for t in range(1, STEPS + 1)
        }
        run.step_matrices[left.split("_")[0]] = (found[2].split(", "), value)
        return {}
    letter, index = re.fullmatch(r"(\w+)_\{(\w+),XY\}", left).groups()
    found = re.match(r"\((\w+)_\{(.*?)\} \.\.\. \w+_\{(.*?)\}\)_\{XY\}(?:  for (.*), else 0)?", right)
    states, matrices = run.step_matrices[found[1]]
    way = -1 if states[0].startswith("d") else 1

    def product(**at: int) -> np.ndarray:
        newest, oldest = (eval(x, {"C": STEPS, **at}) for x in (found[2], found[3]))
        total = np.eye(len(states)) * (1 if found[4] is None or eval(found[4], at) else 0)
        for t in range(oldest, newest + way, way):
            total = matrices[t] @ total
        return total

    steps = range(1, STEPS + 1)
    if index == "ij":
        grid = np.array([[product(i=i, j=j) for j in steps] for i in steps])
    else:
        grid = np.array([[product(**{index: i})] for i in steps])
    made = {}
    for a, x in enumerate(states):
        for b, y in enumerate(states):
            made[f"{letter}_{x},{y}"] = grid[..., a, b]
            made[f"{letter}_C,{x},{y}"], made[f"{letter}_1,{x},{y}"] = grid[-1:, :1, a, b], grid[:1, :1, a, b]
    return made


def even(vectors: list[np.ndarray]) -> np.ndarray:
    """Vectors as rows; a scalar, such as an empty product, stands for a vector of it."""
    width = max(x.size for x in vectors)
    return np.array([np.broadcast_to(x.ravel(), width) for x in vectors])


def check_line(run: Run, line: str, known: dict[str, np.ndarray], look) -> None:
    line, _, meaning = line.partition("   (row t: ")
    left, _, right = line.partition(" = ")
    if row := re.fullmatch(r"\[(\w+)\]_t", left):
        known[row[1]] = np.concatenate([read(right, run.lookup(t)).T for t in range(1, STEPS + 1)])
        return
    if indexed := re.fullmatch(r"\[?([A-Za-z]+'*(?:_\{?\w+\}?)?)\]?_\{([a-z](?:,[a-z]'*)*)\}", left):
        sizes = run.sizes | {"i": STEPS, "j": STEPS}
        known[re.sub(r"[{}]", "", indexed[1])] = read_indexed(right, indexed[2].split(","), look, sizes)
        return
    name, below, right = sides(line)
    value = read(right, look)
    whole = f"{name}_{below}" if below else name
    if meaning:
        rows = [read(meaning.removesuffix(")"), run.lookup(t)) for t in range(1, STEPS + 1)]
        assert close(value, np.concatenate([x.T for x in rows])), line
    elif below == "C":
        assert close(value, run.last[name]), line
        return
    elif below == "0":
        assert close(value, run.expected_initial[name]), line
        return
    elif not below:
        assert close(value, run.matrix(name)), line
    known.setdefault(whole, value)


# --- what a reader sees ------------------------------------------------------------------------------------------------


def gated() -> Recurrence:
    """A gate in a range, which a pass takes another form of, read by an output whose gradient needs the state's last value."""
    r = Recurrence("gated")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, g = r.inputs("v", e), r.inputs("g")
    S, n = r.state("S", d, e), r.state("n", d)
    a = r.let("a", 0.5 + 0.5 * sigmoid(g))
    r.update(S, a * S.prev + k * v.T)
    r.update(n, a * n.prev + k)
    r.output("o", S.next.T * q / Max(absolute(dot(n.next, q)), 1))
    return r


def test_the_recurrence_is_printed_as_it_was_written():
    step, *_ = (lines := [f.plain for s in derivation(compile_spec(gated())) for f in s.formulas])
    assert step == "a_t = 1/2 + 1/2 sigmoid(g_t)"
    form = lines[lines.index("dn_0 = a_1 dn_1") + 1 :]
    assert len([x for x in form if x.startswith("a_t = ")]) == 1


def test_a_sweep_says_what_it_gives():
    lines = [f for s in derivation(compile_spec(gated())) for f in (*s.formulas, None)]
    for one, after in pairwise(lines):
        if one is not None and "goes from the" in one.plain and (after is None or after.text):
            assert one.plain.endswith("with S as above.")


@pytest.mark.parametrize("r", [gated(), two_writes()], ids=lambda r: r.name)
def test_gradients_have_one_notation(r):
    for section in derivation(compile_spec(r)):
        for f in section.formulas:
            assert r"\mathbf{d" not in f.latex and r"\mathrm{dl" not in f.latex, f.latex


def test_a_long_formula_goes_on_under_itself():
    section = derivation(compile_spec(gated()))[1]
    first, *others = section_text(section, 40).plain.splitlines()
    assert first == section.title and all(x.startswith("    ") for x in others)
    assert any(x.startswith("        ") for x in others) and max(map(len, others)) <= 40
