"""Stating claims beside a recurrence: the part of `Recurrence` that hands things on to its `Setting`.

Everything a setting can declare is there, so that a user's own recurrence needs no `Setting` of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .claims import add_claim, setting_of
from .source import caller


class Claiming:
    """What a recurrence's file says about it; the documentation's page on claims has the whole."""

    def quantities(self, names: str) -> Any:
        """Quantities to state claims with, indexed at a step: `t, q, S, do, dq = r.quantities("t q S do dq")`."""
        return self._claimed.names(names)

    def claim(self, name: str, *what: Any, over: Any = (), latex: str = "", section: str = "", note: str = "") -> Any:
        """State a formula for the verifier: `r.claim("dq", dq(t), S(t) * do(t))`."""
        return add_claim(self, name, *what, over=over, latex=latex, section=section, note=note)  # type: ignore[arg-type]

    def same_as(self, other: Any, names: Mapping[str, str] | None = None) -> Any:
        """Claim that another recurrence, or that of a file beside this one, gives the same outputs from the same inputs:
        `r.same_as("published.py", {"q": "query"})`, where `names` has what is called otherwise there."""
        from .statements import SameAs

        name = getattr(other, "name", None) or Path(other).stem
        where = Path(caller().file).parent / other if isinstance(other, str) else other
        found = str(where) if isinstance(where, Path) and where.is_file() else other
        return add_claim(self, f"same as {name}", SameAs(found, tuple((names or {}).items())))  # type: ignore[arg-type]

    def assume(self, initial: Mapping[str, Any] | None = None, final_loss: bool = True) -> None:
        """What all claims are meant under: `r.assume(initial={"S": 0}, final_loss=False)`."""
        self._claimed.assume(initial, final_loss)

    def define(self, name: str, index: Any, body: Any, shown: str = "") -> Any:
        """An abbreviation for claims: `p = r.define("p", t, (1 - lam(t)) * dS(t).T * k(t))`, then `p(t + 1)`. `index` may be
        several, or none: `()`."""
        return self._claimed.define(name, index if isinstance(index, tuple) else (index,), body, shown)

    def recursive(
        self, name: str, index: Any, first: Any, start: Any, step: Callable[[Any], Any], backwards: bool = False
    ) -> Any:
        """A quantity defined by its own value before, or with `backwards` after; see `Setting.recursive`."""
        return self._claimed.recursive(name, index, first, start, step, backwards=backwards)

    def given(self, names: str, *dims: Any, **about: Any) -> Any:
        """More quantities that may be anything, beside those of the recurrence: `w = r.given("w", d)`."""
        return self._claimed.given(names, *dims, **about)

    def ambiguous(self, name: str, index: Any, readings: dict[str, Any]) -> Any:
        """A quantity that a text leaves open, with a formula for each reading; claims that use it are tried under all."""
        return self._claimed.ambiguous(name, index if isinstance(index, tuple) else (index,), readings)

    def chunked(self, chunk: str = "c", chunks: str = "N") -> Any:
        """Let the n steps be N chunks of c steps, for all claims: `c, N = r.chunked()`."""
        return self._claimed.chunked(chunk, chunks)

    def indices(self, names: str, low: object = None, high: object = None) -> Any:
        """More indices, and the values that they run over where a claim leaves them free: `i = r.indices("i", 1, N)`."""
        return self._claimed.indices(names, low, high)

    def rows(self, name: str, of: object) -> Any:
        """The matrix with a row for each step: `Q = r.rows("Q", q)`."""
        return self._claimed.rows(name, of)

    def carried(self, state: str, name: str) -> Any:
        """The gradient by a state through later steps only, as it is carried back to the step: `r.carried("S", "dSc")`."""
        return self._claimed.carried(state, name)

    @property
    def _claimed(self) -> Any:
        return setting_of(self)  # type: ignore[arg-type]
