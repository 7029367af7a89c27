"""More random specs: what the first grammar doesn't draw, whose seeds mean what they meant. Maxima and minima of a state, several
corrections in turn, a number for each entry of a matrix, matrices that multiply it, stabilisers, and gates with a domain."""

from __future__ import annotations

import random
from dataclasses import replace

from .grammar import Drawn, Given, Grammar
from .terms import Shape, Term, call, number

FIRST = 1_000_000  # seeds from here on


def draw_wider(seed: int) -> Drawn:
    """The spec of a seed."""
    return _Wider(random.Random(seed), f"random_{seed}").spec()


class _Wider(Grammar):
    def rate(self, shape: Shape) -> Term:
        if not self.often(0.3):
            return super().rate(shape)
        z = self.bounded(shape)
        return self.pick(z, self.op("subtract", number(1), z))

    def bounded(self, shape: Shape) -> Term:
        """An input or a parameter that lies between 0 and 1."""
        kind = self.pick("inputs", "parameter")
        name = f"z{kind[0]}{''.join(shape)}"
        self.given[name] = Given(name, kind, shape, domain=(0, 1))
        return Term("name", (name,), shape)

    def update(self, name: str) -> Term:
        S, shape = Term("prev", (name,), self.states[name]), self.states[name]
        if len(shape) < 2:
            return self.extreme(S) if self.often(0.5) else super().update(name)
        ways = [self.in_turn, self.in_turn, self.by_entry, self.multiplied, lambda _: super(_Wider, self).update(name)]
        return self.pick(*ways)(S)

    def extreme(self, S: Term) -> Term:
        """The largest or smallest of a scaled state and something else, perhaps of two of them."""
        x = self.op("add", self.op("hadamard" if S.shape else "scale", self.rate(S.shape), S), self.input_of(S.shape))
        for _ in range(self.pick(1, 1, 2)):
            x = self.pick(
                self.op("relu", x),
                self.op("largest", x, self.input_of(S.shape)),
                self.op("smallest", x, self.input_of(S.shape)),
            )
        return x

    def input_of(self, shape: Shape) -> Term:
        return self.vector(shape[0], 1) if shape else self.scalar(1)

    def in_turn(self, S: Term) -> Term:
        """Corrections that follow each other, of keys that may be alike."""
        x = self.decayed(S) if self.often(0.5) else S
        d, e = S.shape
        for _ in range(self.pick(2, 2, 3)):
            key = self.op("normalize", self.argument("inputs", (d,)))
            strength = self.op("sigmoid", self.argument("inputs", ()))
            if self.often(0.4):
                strength = self.op("scale", number(2), strength)
            read = self.op("rows", key, x, shape=(e,))
            value = self.op("subtract", self.argument("inputs", (e,)), read)
            left = self.op("scale", strength, key)
            x = self.op("add", x, self.op("outer", left, value, shape=S.shape))
        return self.op("add", x, self.written(S.shape, [S], [])) if self.often(0.3) else x

    def by_entry(self, S: Term) -> Term:
        """A number for each entry, of either sign or a decay."""
        d, e = S.shape
        gates = self.op("outer", self.vector(d, 1), self.vector(e, 1), shape=S.shape)
        parameter = self.argument("parameter", S.shape)
        both = self.op("scale rows", self.op("softplus", self.argument("inputs", (d,))), self.op("exp", parameter))
        m = self.pick(
            self.op("tanh", gates),
            self.op("sigmoid", self.op("add", gates, parameter)),
            self.op("exp", self.op("negative", both)),
            self.bounded(S.shape),
            self.op(
                "subtract", call("outer", Term("ones", (d,), (d,)), Term("ones", (e,), (e,)), shape=S.shape), gates
            ),
        )
        return self.op("add", self.op("hadamard", m, S), self.written(S.shape, [], []))

    def multiplied(self, S: Term) -> Term:
        """By a matrix that is the same at each step, scaled to keep numbers in bounds."""
        side = self.pick(0, 1)
        x = S.shape[side]
        m = self.op("scale", number(0.3), self.argument("parameter", (x, x)))
        product = self.op("product", *((m, S) if side == 0 else (S, m)), shape=S.shape)
        if self.often(0.5):
            product = self.op("add", self.op("scale", self.rate(()), S), product)
        return self.op("add", product, self.written(S.shape, [S] if self.often(0.3) else [], []))

    def spec(self) -> Drawn:
        drawn = super().spec()
        if not self.often(0.25):
            return drawn
        # a running maximum, and an average of exponentials that it keeps from overflowing
        x = self.argument("inputs", ())
        log = self.op("negative", self.op("softplus", self.argument("inputs", ())))
        m, n = (Term("prev", (s,), ()) for s in ("m", "n"))
        largest = self.op("largest", call("add", log, m), x)
        below = self.op("exp", call("subtract", call("add", log, m), Term("next", ("m",), ())))
        share = self.op("exp", call("subtract", x, Term("next", ("m",), ())))
        updates = {"m": largest, "n": call("add", call("scale", below, n), share)}
        given = {g.name: g for g in drawn.given} | {
            g.name: g for g in self.given.values() if g.name in (x.args[0], _leaf(log))
        }
        return replace(
            drawn,
            given=tuple(given.values()),
            states={**drawn.states, "m": (), "n": ()},
            updates={**drawn.updates, **updates},
            outputs={**drawn.outputs, "p": call("over", share, call("add", Term("next", ("n",), ()), number(1)))},
        )


def _leaf(x: Term) -> str:
    return x.args[0] if x.op == "name" else _leaf(x.args[0])
