"""A place among the tokens of a row, and what every part of the parser does there: look, step on, take an argument."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula

from .lexer import Token, argument_at
from .row import DEEPEST, Fault, Notation, Row
from .words import CLOSING, OPENING


class Cursor:
    """Reads one row, token by token. `bound` are the indices of the sums around. What the parts of the parser need of each other
    is declared here."""

    def __init__(
        self, tokens: list[Token], notation: Notation, row: Row, bound: frozenset[str] = frozenset(), depth: int = 0
    ) -> None:
        self.tokens, self.i, self.notation, self.out = tokens, 0, notation, row
        self.bound, self.depth = bound, depth
        if depth > DEEPEST:
            raise Fault("it is nested too deeply", tokens[0] if tokens else None)

    # --- tokens

    @property
    def token(self) -> Token | None:
        return self.tokens[self.i] if self.i < len(self.tokens) else None

    @property
    def text(self) -> str:
        return self.tokens[self.i].text if self.i < len(self.tokens) else ""

    def is_command(self, *names: str) -> bool:
        x = self.token
        return x is not None and x.kind == "command" and x.text in names

    def is_mark(self, *marks: str) -> bool:
        x = self.token
        return x is not None and x.kind == "mark" and x.text in marks

    def argument(self) -> list[Token]:
        if self.token is None:
            raise Fault("it ends where something should follow", self.tokens[-1] if self.tokens else None)
        found, self.i = argument_at(self.tokens, self.i)
        return found

    def inside(self, tokens: list[Token], bound: frozenset[str] | None = None) -> Cursor:
        return type(self)(tokens, self.notation, self.out, self.bound if bound is None else bound, self.depth + 1)

    def whole(self, tokens: list[Token], bound: frozenset[str] | None = None) -> Formula:
        """The formula that tokens spell, all of them."""
        parser = self.inside(tokens, bound)
        found = parser.side()
        if parser.token is not None:
            raise Fault(f"{parser.token.shown} can't stand here", parser.token)
        return found

    def closing_at(self, i: int) -> int:
        """The position of the bracket that closes the one at i."""
        depth = 0
        for k in range(i, len(self.tokens)):
            x = self.tokens[k]
            if x.kind in ("mark", "command"):
                depth += (x.text in OPENING) - (x.text in CLOSING)
                if depth == 0:
                    return k
        return len(self.tokens)

    # --- what the parts have for each other

    def row(self) -> None:
        """Read all of the row."""
        raise NotImplementedError

    def relation(self) -> str | None:
        raise NotImplementedError

    def side(self, relation: str = "") -> Formula:
        """What stands on one side of a relation."""
        raise NotImplementedError

    def expression(self) -> Formula:
        """A sum of terms."""
        raise NotImplementedError

    def term(self) -> Formula:
        """Products of entries of products."""
        raise NotImplementedError

    def factor(self) -> Formula:
        raise NotImplementedError

    def starts_factor(self) -> bool:
        raise NotImplementedError

    def at_sign(self) -> bool:
        raise NotImplementedError

    def symbol(self) -> Formula:
        """A name with its indices."""
        raise NotImplementedError

    def index_formula(self) -> Formula:
        """An index such as t - 1, all of the tokens."""
        raise NotImplementedError

    def condition(self, said: list[Token], start: Token | None) -> Formula:
        """A condition on indices."""
        raise NotImplementedError

    def applied(self, name: str) -> Formula:
        """A function with its argument."""
        raise NotImplementedError

    def brackets(self) -> Formula:
        raise NotImplementedError

    def bars(self) -> Formula:
        raise NotImplementedError
