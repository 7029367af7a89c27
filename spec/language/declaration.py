"""What a spec file can declare: a named thing of some kind (a recurrence, an attention, ...), with where it was declared."""

from __future__ import annotations

from typing import Any, NoReturn

from chunkform.errors import AttributeError_, SpecError, nearest, page_of

from .names import spec_name
from .queries import Queries
from .source import caller, wrote

SETTABLE = ("doc", "source")


class Declared(list[Any]):
    """What has been declared so far, of one kind. Its name is near that of the method that declares one, which says so."""

    def __init__(self, one: str) -> None:
        super().__init__()
        self.one = one

    def __call__(self, *words: object, **more: object) -> None:
        raise SpecError(f"this lists what is declared already; r.{self.one}(..) declares one {self.one}", caller())


class Declaration(Queries):
    """The base of every kind. `noun` is what a kind is called in messages."""

    noun = "declaration"

    def __init__(self, name: str, doc: str = "", source: str = "") -> None:
        self.where = caller()
        self.name = spec_name(name, self.noun, self.where)
        for what, text in (("doc", doc), ("source", source)):
            if not isinstance(text, str):
                raise SpecError(f"the {what} of {self.name} must be a string, got {text!r}", self.where)
        self.doc = doc
        self.source = source
        self.claims: list[Any] = Declared("claim")

    def quantities(self, *names: Any, **about: Any) -> Any:
        """Quantities to state claims with; only a recurrence has these."""
        raise SpecError(
            f"claims about {self.name}, a declaration of the kind {self.noun}, are stated in a Document with a Setting: "
            f"see {page_of('claims')}",
            caller(),
        )

    claim = define = given = ambiguous = recursive = chunked = carried = assume = quantities

    def validate(self) -> Declaration:
        """Check what only the whole declaration can show; returns self."""
        return self

    def _repr_latex_(self) -> str | None:
        """For notebooks: the equations of a step."""
        from .display import equations

        lines = r" \\ ".join(equations(self))
        return r"$$\begin{aligned} " + lines + r" \end{aligned}$$" if lines else None

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and SymPy look for these
            raise AttributeError(name)
        article = "an" if self.noun[0] in "aeiou" else "a"
        known = [x for x in dir(type(self)) if not x.startswith("_") and callable(getattr(type(self), x))]
        given = f"; a quantity is what declared it returned, as in `{name} = r.inputs({name!r})`"
        raise AttributeError_(f"{article} {self.noun} has no {name!r}{nearest(name, known) or given}", caller())

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or not self._told(name):
            super().__setattr__(name, value)
        elif name not in SETTABLE:
            raise AttributeError_(self._unsettable(name), caller())
        elif not isinstance(value, str):
            raise SpecError(f"the {name} of {self.name} must be a string, got {value!r}", caller())
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._told(name):
            raise AttributeError_(self._unsettable(name), caller())
        super().__delattr__(name)

    def _told(self, name: str) -> bool:
        """Is a name set or deleted by a spec, of a kind of this language? The language and the compiler set what they like."""
        return wrote(2) and type(self).__module__.partition(".")[0] == __name__.partition(".")[0]

    def _unsettable(self, name: str) -> str:
        article = "an" if self.noun[0] in "aeiou" else "a"
        if callable(getattr(type(self), name, None)):
            return (
                f"{name} of {article} {self.noun} can't be set: it is a method, which is called, as in `r.{name}(..)`"
            )
        if name in vars(self):
            return f"{name} of {article} {self.noun} can't be set: what is declared goes there by itself"
        return (
            f"{article} {self.noun} has no {name!r} that can be set{nearest(name, SETTABLE) or ', but doc and source'}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
