"""The functions that launch the recurrent form's kernels: what they allocate, launch and add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.code import Attribute, Group, Literal, Starred
from ...ir.launch_ir import (
    HEADS,
    STEPS,
    TILES,
    Alloc,
    Body,
    Call,
    Code,
    Define,
    Entries,
    Entry,
    For,
    Function,
    If,
    Launch,
    Passed,
    Return,
    Set,
    Statement,
    Table,
    entry,
    put,
    ref,
    takes,
)
from ...ir.python_code import (
    EMPTY,
    TRUE,
    Each,
    Fixed,
    Named,
    Part,
    Spread,
    beside,
    dictionary,
    made_by,
    method,
    said,
    several,
)
from ..chunkwise.compiled import Compiled
from .initial import depends_on_parameters
from .kernel import SEVERAL, Pointer
from .names import first_input, sizes, tensors, wanted_among

Made = dict[str, Any]  # a kernel, and what its launcher is made of
LIKE = ref("like")
MOST = 8  # tiles of states, of parameters and of their gradients of which a thread holds 32 entries each in a backward pass
FEWER = 8  # entries of more
STORED = (
    "kept",
    "finals",
    "outputs",
    "partial_sums",
    "workspace",
    "initial_gradients",
    "gradients",
    "moment",
    "scratch",
)
LOADED = ("given", "start", "saved", "incoming_steps", "ends", "workspace", "moment", "scratch")


def steps_forward(
    c: Compiled,
    name: str,
    k: Made,
    rows: Made | None,
    kernels: str = "sequential_forward",
    keeps: bool = True,
    coefficients: str = "",
) -> Function:
    """The function that makes outputs, last states and checkpoints; these where it isn't told, if it `keeps` them. The names of
    its kernels begin with `kernels`, and that of the function for what parameters alone make, if there is one, with
    `coefficients`."""
    body: list[Statement] = [
        *_coefficients(coefficients),
        *_measure(c),
        *_cut(k, 2048),
        Define(("layout",), made_by("layout_of", "batch", "steps", "packed", "needs_backward")),
        Call(
            ("start",), "torch_start", tuple(map(Fixed, ("given", "states", "constants", "layout.sequences", "heads")))
        ),
        Set(
            ("start",),
            Each(method(made_by("x.float"), "contiguous"), ("name", "x"), method(ref("start"), "items"), key="name"),
        ),
        Set(("outputs", "partial_sums"), beside(EMPTY, EMPTY), empty=True),
    ]
    like = Fixed("given")[first_input(c)]
    for x in k["outputs"]:
        body.append(_part(x) if x["part"] else Alloc(Entry("outputs", x["key"]), _shape(x), None, like=like))
    body += [
        Table("finals", tuple(Alloc(x["key"], _shape(x), None, like=LIKE) for x in k["finals"])),
        Set(("saved",), EMPTY, empty=True),
        If(
            Fixed("needs_backward"),
            tuple(Alloc(Entry("saved", x["key"]), _shape(x), None, like=LIKE) for x in k["saved"]),
        ),
        *_launched(
            c,
            k,
            rows,
            kernels,
            _warps(k, lambda x: made_by("warps_for", x, 128), lambda x: made_by("warps_for", x, 64)),
        ),
    ]
    for x in k["outputs"]:
        if x["part"]:
            total = method(
                method(entry("partial_sums", x["key"]), "sum", 0),
                "to",
                Attribute(Fixed("given")[first_input(c)], "dtype"),
            )
            body.append(Set((Entry("outputs", x["key"]),), total))
    body.append(Return(beside(*map(ref, ("outputs", "finals", "saved")))))
    told = (
        "(outputs, final states, checkpoints of the states), in recurrent form; no checkpoints unless `needs_backward`."
    )
    return Function(
        name,
        takes("given", "states", "constants", packed=None, needs_backward=Literal(keeps)),
        told,
        tuple(body),
        frees=False,
    )


def steps_backward(c: Compiled, name: str, k: Made, rows: Made | None, coefficients: str = "") -> Function:
    """The function that makes the gradients."""
    tables = ["ends", "workspace", *(["moment"] if rows else []), "initial_gradients", "gradients", "partial_sums"]
    body: list[Statement] = [
        *_coefficients(coefficients),
        *_measure(c),
        *_cut(k, 4096, backwards=True),
        Define(("layout",), made_by("layout_of", "batch", "steps", "packed")),
        Table("incoming_steps", tuple(Set((x["key"],), _incoming("cotangents", x)) for x in k["cotangents"])),
        Set(tuple(tables), beside(*[EMPTY] * len(tables)), empty=True),
    ]
    for x in k["states"]:
        end = method(method(_incoming("final_cotangents", x), "float"), "contiguous")
        body.append(Set((Entry("ends", x["key"]),), end))
        body.append(Alloc(Entry("initial_gradients", x["key"]), _shape(x), None, like=LIKE))
    body += [Alloc(Entry("workspace", x["key"]), _shape(x), None, like=LIKE) for x in k["workspace"]]
    for x in k["per_step"]:
        gradient = Set(
            (Entry("gradients", x["key"]),), made_by("gradient_like", Fixed("given")[x["key"]], x["shape"].whole)
        )
        body.append(_part(x) if x["part"] else gradient)
    for x in k["per_head"]:
        body.append(_part(x) if x["part"] else Alloc(Entry("gradients", x["key"]), _shape(x), None, like=LIKE))
    body += [Alloc(Entry("moment", x["key"]), _shape(x), None, like=LIKE) for x in (rows["moment"] if rows else ())]
    whole = _warps(k, lambda x: made_by("whole_warps", x), lambda x: made_by("warps_for", x))
    fewer = (FEWER,) if k["tiles"] > MOST else ()
    warps = made_by("warps_for", k["entries"], *fewer) if k["tiled"] else whole
    body += _launched(c, k, rows, "sequential_backward", warps)
    sums = frozenset({Entries("gradients", "partial_sums")})
    summed = put(Fixed("gradients")[Fixed("name")], method(ref("sums"), "sum", 0), stores=sums)
    body.append(For(("name", "sums"), method(ref("partial_sums"), "items"), (summed,), ("sums",)))
    if depends_on_parameters(c):
        through = made_by("torch_start_gradients", "given", "states", "constants", ref("initial_gradients"))
        place = ref("gradients")[Fixed("name")]
        added = put(place, place + ref("gradient"))
        body.append(For(("name", "gradient"), method(through, "items"), (added,)))
    for x in k["per_head"]:
        total = entry("gradients", x["key"])
        body.append(put(total, method(total, "sum", 0)))
    if coefficients:
        through = made_by(f"{coefficients}_coefficient_gradients", "given", "constants", ref("gradients"))
        place = ref("gradients")[Fixed("name")]
        added = put(place, method(ref("gradients"), "get", Fixed("name"), 0.0) + ref("gradient"))
        body.append(For(("name", "gradient"), method(through, "items"), (added,)))
    typed = made_by("typed_like", Fixed("given")[Fixed("name")], "gradient")
    body += [
        Set(("gradients",), wanted_among("gradients", typed)),
        Return(beside(ref("gradients"), wanted_among("initial_gradients"))),
    ]
    told = "(gradients, gradients of the initial states): the adjoint's steps, over states recomputed from checkpoints."
    given = takes("given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs", packed=None)
    return Function(name, given, told, tuple(body), frees=False)


def _coefficients(begins: str) -> Body:
    """What parameters alone make, beside what is given."""
    if not begins:
        return ()
    made = made_by(f"{begins}_coefficients", "given", "constants")
    return (Set(("given",), dictionary([Spread(ref("given")), Spread(made)])),)


# --- sizes ----------------------------------------------------------------------------------------------------------


def _measure(c: Compiled) -> Body:
    layout = sizes(c.step)
    return (
        Define(("batch", "steps"), Attribute(layout.lead, "shape")[:2]),
        Define(("heads",), made_by("max", *_heads_of(c).values(), 0)),
        Set(("like",), method(layout.lead, "new_zeros", several(), dtype="torch.float32")),
        *(Define((f"size_{d}",), size) for d, size in layout.dims.items()),
    )


def _heads_of(c: Compiled) -> dict[str, Code]:
    return {v.name: Attribute(Fixed("given")[v.name], "shape")[2 if v.per_step else 0] for v in tensors(c.step)}


def _cut(k: Made, entries: Part, backwards: bool = False) -> Body:
    """The widths of tiles."""
    smallest, tiled = k["smallest"], k["tiled"]
    found = [Define((f"block_{d}",), made_by("block_of", f"size_{d}", smallest)) for d in k["dims"] if d != tiled]
    if not tiled:
        return tuple(found)
    most = [Named("most", _most(k))] if k["partial_sums"] else []
    way = [Named("backwards", TRUE)] if backwards else []
    if k["several"]:
        found.append(Define((SEVERAL,), made_by("is_narrow", k["beside"], *way)))
    if k["kernel"].together > 1:
        entries = made_by("narrow", entries, k["beside"], *way)
    size, block = Fixed(f"size_{tiled}"), Fixed(f"block_{tiled}")
    tile = made_by("tile_of", size, k["beside"], entries, smallest, *most)
    return (*found, Define((block.id,), tile), Define(("tiles",), -Group(-size // block)))


def _most(k: Made) -> Code:
    """How many tiles there are at most, where each writes a part of a result."""
    return made_by("parts_at_most", f"size_{k['tiled']}", k["beside"]) if k["kernel"].ahead else Literal(8)


def _shape(x: Made) -> Code:
    found: Code = x["shape"].entries
    return found


def _part(x: Made) -> Alloc:
    """Room for what each tile has of a result."""
    return Alloc(Entry("partial_sums", x["key"]), beside("tiles", Starred(x["shape"].whole)), None, like=LIKE)


def _incoming(table: str, x: Made) -> Code:
    return made_by("incoming", method(table, "get", said(x["key"])), x["shape"].whole, LIKE)


# --- launches -------------------------------------------------------------------------------------------------------


def _warps(k: Made, states: Callable[[Code], Code], parameters: Callable[[Code], Code]) -> Code:
    return made_by("max", states(k["held"]), parameters(k["fixed"])) if k["fixed"] else states(k["held"])


def _launched(c: Compiled, k: Made, rows: Made | None, name: str, warps: Code) -> Body:
    """A launch of the kernel; of the one over rows, where states are too wide to be held whole."""
    if rows is None:
        return (_launch(c, k, f"{name}_kernel", warps),)
    wide = Fixed(f"size_{rows['row']}") + Fixed(f"size_{rows['column']}")
    scratch = beside(Fixed("layout.sequences") * Fixed("heads"), rows["slots"], wide)
    over_rows: Body = (
        Define(("block_row",), made_by("rows_of_tile", f"block_{rows['column']}", f"block_{rows['row']}")),
        Alloc("scratch", scratch, None, like=LIKE),
        _launch(c, rows, f"{name}_rows_kernel", warps),
    )
    return (If(made_by("too_wide", k["entries"]), over_rows, (_launch(c, k, f"{name}_kernel", warps),)),)


def _launch(c: Compiled, k: Made, kernel: str, warps: Code) -> Launch:
    pointers: list[Pointer] = k["kernel"].pointers
    strided = [_passed(x) for x in pointers if x.strides]
    heads = _heads_of(c)
    places: list[Code] = [Starred(made_by("strides_of", *strided))]
    places += [Fixed("constants")[key] for _, key in k["constants"]]
    places += [Fixed("layout.table"), Fixed("heads")]
    places += [Fixed("heads") // made_by("max", heads[key], 1) for _, key in k["groups"]]
    places += [Fixed("steps"), Fixed("layout.segment"), Fixed("batch") * Fixed("steps")]
    words = [(w, Fixed(w)) for d in k["dims"] for w in (f"size_{d}", f"block_{d}")]
    tiled = k["tiled"]
    grid: Code = Fixed("layout.sequences") * Fixed("heads")
    return Launch(
        kernel,
        grid * Fixed("tiles") if tiled else grid,
        tuple(_argument(k, x) for x in pointers),
        tuple(places),
        (
            *words,
            *([("tiles", Fixed("tiles"))] if tiled else []),
            *([(SEVERAL, Fixed(SEVERAL))] if k["several"] else []),
        ),
        _options(c, k, warps),
        frozenset({STEPS, HEADS, *([TILES] if tiled else [])}),
    )


def _options(c: Compiled, k: Made, warps: Code) -> tuple[tuple[str, Code], ...]:
    if "slots" in k:
        row = Fixed("block_row")
        several_rows = made_by("warps_for", row * Fixed(f"block_{k['column']}"))
        return (("slots", Literal(k["slots"])), ("block_row", row), ("num_warps", several_rows))
    if not k["loaded"]:
        return (("num_warps", warps),)
    entries = Group(k["loaded"]) * method(sizes(c.step).lead, "element_size")
    warps = made_by("max", warps, made_by("warps_for", k["loaded"], 64))
    return (("num_warps", warps), ("num_stages", made_by("stages_for", entries)))


def _argument(k: Made, x: Pointer) -> Passed:
    """What a launch passes for a tensor. Tiles have places of their own, or the first of them alone stores."""
    stores = x.role in STORED
    over = frozenset({STEPS, HEADS, *([TILES] if k["tiled"] else [])}) if stores else frozenset[str]()
    return Passed(_passed(x), x.role in LOADED, stores, over)


def _passed(x: Pointer) -> Code:
    if x.role == "scratch":
        return ref("scratch")
    return method(ref("saved"), "get", said(x.key)) if x.role == "kept" else entry(x.role, x.key)
