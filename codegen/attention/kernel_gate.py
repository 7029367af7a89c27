"""What must hold of an attention's kernels: run over exact numbers, they leave in memory what its derivation says.

Each is run as it is printed, with the functions of the tile that it calls and those of the runtime: on two blocks of rows and a
tail, or of keys and a tail, causal and not, with heads that share keys, with numbers of rows and keys beside products, and with
keys that are values. `codegen/exact/run_kernel.py` says what is refused on the way.

Powers of two are numbers where their exponents are whole. An online softmax multiplies them, so what the forward kernel is given
makes energies whole; where no input does, a sum of the tile's arguments by random whole numbers stands for its function, which
the kernels for rows and for keys are held by as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from chunkform.errors import GateError

from ..exact.jit_source import NoMeaning
from ..exact.memory import Laid, compare, drawn, room
from ..exact.rationals import LN2, array, written
from ..exact.run_kernel import Argument, Called, Tensor, run
from ..exact.runtime_source import module_of
from ..ir.code import Literal, Name, plus
from ..ir.evaluate import Env, evaluate
from ..ir.expr import dim_of, rename
from ..ir.kernel_ir import KernelFunction, Return, TileFunction
from .feature_maps import AVERAGED
from .features_kernel import Made
from .lower import QUERY
from .pair_memory import BLOCK, CHANNELS, NUMBERS, ZERO, Case, Derivation, Given
from .pair_statements import columns_of, rows_of
from .pairs import Gradient, Pairs

RUNTIME = "chunkform.runtime.attention.kernels"
TO_NATURAL = written(0.6931471805599453)  # as the runtime has the logarithm of 2
CASES = (
    Case(1, 5, 4, 2, 1, causal=True),  # the first row sees nothing
    Case(2, 3, 5, 1, 1, causal=False, beside=True, same=True, held=True),
    Case(1, 3, 5, 2, 1, causal=True, beside=True),
)


@cache
def runtime_function(name: str) -> Callable[..., object] | None:
    """The function of the runtime that kernels call so."""
    found: Callable[..., object] | None = getattr(module_of(RUNTIME), name, None)
    return found


def gate_pairs(d: Derivation, p: Pairs, functions: list[TileFunction], kernels: tuple[KernelFunction, ...]) -> None:
    """Raises GateError where one of the kernels forwards, for rows and for keys isn't what the derivation says."""
    known = {f.name: f for f in functions}
    forward, rows, keys = kernels
    try:
        for case in CASES:
            _Forward(d, p, case, random.Random(case.keys)).gate(forward, known)
            _Backward(d, p, case, random.Random(case.rows)).gate(rows, keys, known)
    except NoMeaning as why:
        raise GateError(f"{d.split.lowered.name}: there is no exact meaning for {why}") from why


# --- forwards -------------------------------------------------------------------------------------------------------


@dataclass
class _Forward(Given):
    """Numbers of which energies are whole, wherever the kernel takes the largest; if need be of a function that stands in."""

    stand_in: TileFunction | None = None
    factors: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.p.softmax and not (self.p.unscaled or self.p.beside)

    def number(self, shape: tuple[int, ...]) -> np.ndarray:
        if not self.p.softmax:
            return super().number(shape)
        found = np.empty(shape, dtype=object)
        found.ravel()[:] = [
            Fraction(self.random.randrange(1, 4) * self.random.choice((1, -1))) for _ in range(found.size)
        ]
        return found

    def draw(self) -> None:
        super().draw()
        if self.is_whole:
            self.factors = tuple(self.random.sample(range(1, 40), len(self.p.arguments)))
            down, across = (*self.p.rows, "i"), (*self.p.columns, "j")
            terms = [
                (columns_of(n) if n in down else rows_of(n) if n in across else Name(n)) * Literal(float(f))
                for n, f in zip(self.p.arguments, self.factors, strict=True)
            ]
            self.stand_in = TileFunction("energy", self.p.arguments, "", (Return(plus(*terms)),))
        elif self.p.softmax:
            for n in self.p.scalars:
                self.values[n] = abs(drawn(self.random, self.values[n].shape))  # scales of scores are above 0
            query = self.p.scores[0].query
            for h in range(self.case.heads):
                self.values[query][:, h] = array(self.values[query][:, h] / (self.scale(h) / LN2))
            for n in self.p.columns:
                self.values[n] = array(self.values[n] * LN2)

    def energies(self, env: Env) -> np.ndarray:
        if not self.is_whole:
            return super().energies(env)
        given = {x[1]: y for x, y in env.items()}
        sides = {n: (slice(None), None) for n in (*self.p.rows, "i")} | {n: (None,) for n in (*self.p.columns, "j")}
        parts = [given[n][sides.get(n, ())] * f for n, f in zip(self.p.arguments, self.factors, strict=True)]
        return np.broadcast_to(array(sum(parts)), (self.case.rows, self.case.keys))

    def gate(self, k: KernelFunction, functions: Mapping[str, TileFunction]) -> None:
        c, p, known = self.case, self.p, dict(functions)
        if self.stand_in is not None:
            known["energy"] = self.stand_in
        if p.beside:
            self.arguments["beside_p"] = Tensor("beside", self.columns_beside().ravel()) if self.beside else None
        average = self.out("average", c.heads, c.rows, self.widths["E"], "average_p")
        sums = room("sums", (c.batch, c.heads, c.rows))
        self.arguments |= {"lse_p": sums.tensor if p.softmax else None, "mass_p": None if p.softmax else sums.tensor}
        made = self.matrix()
        run(k, c.batch * c.heads * _blocks(c.rows), self.arguments, _functions(known))
        for b, h, kh in self.heads():
            expected, total, output = self.expected(b, h, kh)
            compare(k.name, "averages", average.values[b, h], expected)
            compare(k.name, "the log-sum-exp" if p.softmax else "sums of weights", sums.values[b, h], total)
            if made is not None:
                compare(k.name, "the output", made.values[b, h], output)

    def matrix(self) -> Laid | None:
        """The matrix that the output is averages by, and room for that."""
        if self.p.after is None:
            return None
        c, E, F = self.case, self.widths["E"], 2
        self.values["matrix"] = drawn(self.random, (c.heads, E, F))
        laid = room("matrix", (c.heads, E, F), turned=2).filled(self.values["matrix"])
        self.arguments |= {"after_p": laid.tensor, "F": F, "BF": 4}
        self.arguments |= dict(zip(("after_h", "after_e", "after_f"), laid.strides, strict=True))
        return self.out("out", c.heads, c.rows, F, "out_p")

    def expected(self, b: int, h: int, kh: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Averages of a head, the log-sum-exp or the sums of weights, and the output."""
        energy, sees, value = self.energies(self.env(b, h, kh)), self.case.sees(), self.at("value", b, h, kh)
        averages, sums = [], []
        for e, seen in zip(energy, sees, strict=True):
            top = max(e[seen]) if self.p.softmax and any(seen) else Fraction(0)
            weight = array([x if self.p.linear else _power_of_two(x - top) for x in e[seen]])
            mass = sum(weight, Fraction(0))
            total = array(sum((w * v for w, v in zip(weight, value[seen], strict=True)), value[0] * 0))
            averages.append(array(total / (mass or 1)) if self.p.softmax else total)
            lse = (top + _log2(mass)) * TO_NATURAL if mass else float("-inf")
            sums.append(lse if self.p.softmax else mass)
        return np.stack(averages), array(sums), self.output(np.stack(averages), h)

    def output(self, averages: np.ndarray, h: int) -> np.ndarray:
        after = self.p.after
        if after is None:
            return averages
        node, matrix = self.d.outputs.results[after.output], self.values["matrix"][h]
        leaves = {x.attrs[0]: x for x in node.args[0].args}
        query, own = leaves[AVERAGED].attrs[2]
        (other,) = (a for a in leaves["parameter"].attrs[2] if a != own)
        apart = {a: f"{n}z" for n, a in enumerate((query, own, other))}  # axes of one dim have sizes of their own here
        sizes = dict(zip(apart.values(), (self.case.rows, *matrix.shape), strict=True))
        env: Env = {leaves[AVERAGED].attrs[:2]: averages}
        env[leaves["parameter"].attrs[:2]] = matrix.T if after.across else matrix
        return np.asarray(evaluate(rename(node, apart), env, NUMBERS, sizes), dtype=object)


def _power_of_two(x: Fraction) -> Fraction:
    found: Fraction = NUMBERS.fn("exp2", array(x)).item()
    return found


def _log2(x: Fraction) -> Fraction:
    found: Fraction = NUMBERS.fn("log2", array(x)).item()
    return found


# --- backwards ------------------------------------------------------------------------------------------------------


@dataclass
class _Backward(Given):
    """The kernels for rows and for keys."""

    def draw(self) -> None:
        super().draw()
        c = self.case
        self.values["d_average"] = drawn(self.random, (c.batch, c.heads, c.rows, self.widths["E"]))
        self.values |= {n: drawn(self.random, (c.batch, c.heads, c.rows)) for n in ("shift", "D")}

    def gate(self, rows: KernelFunction, keys: KernelFunction, functions: Mapping[str, TileFunction]) -> None:
        c, p, known = self.case, self.p, _functions(functions)
        self.block("d_average", self.values["d_average"])
        self.arguments |= {"shift_p": Tensor("shift", self.values["shift"].ravel()) if p.softmax else None}
        self.arguments |= {"D_p": Tensor("D", self.values["D"].ravel())}
        self.arguments |= {f"WITH_{n}": not self.beside for n in p.scalars}
        outs = {x: self.room(x, c.heads, c.rows) for x in p.of_rows if x.kind != "scalar" or not self.beside}
        self.arguments |= {x.out: None for x in p.of_rows if x not in outs}
        self.arguments["beside_p"] = (
            Tensor("beside", self.columns_beside().ravel()) if self.beside and p.beside else None
        )
        with_columns = self.arguments | {"BESIDE": self.beside and bool(p.beside)}
        run(rows, c.batch * c.heads * _blocks(c.rows), with_columns, known)
        into = self.out("dvalue", c.key_heads, c.keys, self.widths["E"], "dvalue_p")
        outs |= {x: self.room(x, c.key_heads, c.keys) for x in p.of_keys}
        self.arguments |= {"beside_p": None, "beside_h": 0} | (self.rows_beside() if self.beside else {})
        run(keys, c.batch * c.key_heads * _blocks(c.keys), self.arguments, known)
        sums: dict[tuple[str, int, int], np.ndarray] = {}
        for b, h, kh in self.heads():
            for x, made in self.expected(b, h, kh, outs):
                if x is not None and x.side == "rows":
                    compare(rows.name, f"the cotangent of {x.name}", outs[x].values[b, h], made)
                else:
                    place = ("value" if x is None else x.out, b, kh)
                    sums[place] = array(sums[place] + made) if place in sums else made
        for b, kh in np.ndindex(c.batch, c.key_heads):
            compare(keys.name, "the cotangent of values", into.values[b, kh], sums["value", b, kh])
            for x in p.of_keys:
                compare(keys.name, f"the cotangent of {x.name}", outs[x].values[b, kh], sums[x.out, b, kh])

    def room(self, x: Gradient, heads: int, count: int) -> Laid:
        if x.score:
            return self.out(x.out, heads, count, self.widths[f"D{x.score.n}"])
        laid = room(x.out, (self.case.batch, heads, count))
        self.arguments[x.out] = laid.tensor
        return laid

    def rows_beside(self) -> dict[str, Argument]:
        """The shift and D beside rows, up to whole blocks; those beyond have weights of nothing."""
        c, count = self.case, _blocks(self.case.rows) * BLOCK
        shift = array(self.values["shift"] / self.scales() * -LN2)
        parts = [*self.three_parts(shift), *self.three_parts(array(-self.values["D"]))]
        beyond = self.channels(
            (c.batch, c.heads, count), self.three_parts(np.zeros((c.batch, c.heads, count), dtype=object))
        )
        beyond[:, :, : c.rows] = self.channels((c.batch, c.heads, c.rows), parts)
        return {"beside_p": Tensor("beside", beyond.ravel()), "beside_h": count * CHANNELS}

    def expected(
        self, b: int, h: int, kh: int, outs: Mapping[Gradient, Laid]
    ) -> Iterator[tuple[Gradient | None, np.ndarray]]:
        """Each cotangent of a head, and that of values (None)."""
        env, rule, sees = self.env(b, h, kh), self.d.normaliser, self.case.sees()
        value, d = self.at("value", b, h, kh), self.at("d_average", b, h, kh)
        names = {self.d.split.lowered.query: QUERY}
        inner: Env = {("pair", "energy"): self.energies(env), ("pair", "lse"): self.at("shift", b, h, kh)}
        weight = rename(rule.weight, names)
        exponential = weight.op == "fn" and weight.attrs[0] == "exp"
        made = self.over_pairs(weight.args[0] if exponential else weight, inner)
        weights = np.where(sees, NUMBERS.fn("exp2", made) if exponential else made, ZERO)
        yield None, array(weights.T @ d)
        inner = {("pair", "weight"): weights, ("pair", "G"): array(d @ value.T), ("pair", "D"): self.at("D", b, h, kh)}
        dE = np.where(sees, self.over_pairs(rename(rule.gradient, names), inner), ZERO)
        env["gradient", "dE"] = dE
        for x in outs:
            found = self.d.derivatives[x.name]
            of_pairs = np.where(sees, self.over_pairs(found.inner, env), ZERO)
            of_pairs = array(of_pairs * self.number_of(found.factor, env))
            of_pairs = of_pairs if x.side == "rows" else of_pairs.T
            if x.score:
                other = x.score.key if x.side == "rows" else x.score.query
                yield x, array(of_pairs @ self.at(other, b, h, kh))
            else:
                yield x, array(of_pairs.sum(1))


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _functions(known: Mapping[str, TileFunction]) -> Callable[[str], Called | None]:
    return lambda name: known.get(name) or runtime_function(name)


# --- features -------------------------------------------------------------------------------------------------------


def gate_features(m: Made, k: KernelFunction) -> None:
    """Raises GateError where the kernel doesn't make the features of positions: of two blocks and a tail, block after block."""
    rng, batch, count, heads = random.Random(m.name), 2, 5, 2
    sizes = {d: 2 + n % 2 for n, d in enumerate(m.dims)} | {m.side: count}
    arguments: dict[str, Argument] = {"T": count, "H": heads, "EACH": 2, "BT": BLOCK}
    arguments |= {d: sizes[d] for d in m.dims} | {f"B{d}": 4 for d in m.dims}
    values: dict[tuple[str, str], np.ndarray] = {}
    for y in m.positions:
        shape = tuple(sizes[dim_of(a)] for a in y.attrs[2] if a != m.side)
        values[y.attrs[:2]] = drawn(rng, (batch, heads, count, *shape))
        laid = room(y.attrs[1], (batch, heads, count, *shape), gap=1).filled(values[y.attrs[:2]])
        arguments |= _of_positions(y.attrs[1], laid)
    for y in m.parameters:
        shape = tuple(sizes[dim_of(a)] for a in y.attrs[2])
        values[y.attrs[:2]] = drawn(rng, (heads, *shape))
        laid = room(y.attrs[1], (heads, *shape), gap=1, turned=len(shape)).filled(values[y.attrs[:2]])
        arguments |= {f"{y.attrs[1]}_{n}": s for n, s in zip(("h", *range(1, 4)), laid.strides)}
        arguments[f"{y.attrs[1]}_p"] = laid.tensor
    for y in m.constants:
        values[y.attrs[:2]] = array(Fraction(rng.randrange(1, 2**60), 2**55))
        arguments[y.attrs[1]] = values[y.attrs[:2]].item()
    outs = {}
    for n, x in m.results.items():
        outs[n] = room(n, (batch, heads, count, *(sizes[dim_of(a)] for a in x.axes if a != m.side)))
        arguments |= _of_positions(n, outs[n])
    try:
        run(k, batch * heads * -(-count // (2 * BLOCK)), arguments, runtime_function)
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why
    for b, h in np.ndindex(batch, heads):
        env: Env = {}
        for key, all_heads in values.items():
            own = {"query": (b, h), "key": (b, h), "parameter": (h,)}.get(key[0], ())
            env[key] = array(all_heads[own])
        for n, x in m.results.items():
            expected = np.asarray(evaluate(x, env, NUMBERS, sizes), dtype=object)
            compare(k.name, n, outs[n].values[b, h], expected)


def _of_positions(name: str, laid: Laid) -> dict[str, Argument]:
    return {f"{name}_p": laid.tensor} | {f"{name}_{n}": laid.strides[k] for n, k in (("b", 0), ("h", 1), ("t", 2))}
