"""The functions that launch the recurrent form's kernels: what they allocate, launch and add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...ir.launch_ir import (
    HEADS,
    STEPS,
    TILES,
    Alloc,
    Body,
    Call,
    Define,
    Do,
    Entries,
    Entry,
    Expr,
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
    joined,
    py,
    ref,
)
from ..chunkwise.compiled import Compiled
from .initial import depends_on_parameters
from .kernel import SEVERAL, Pointer
from .names import first_input, sizes, tensors

Made = dict[str, Any]  # a kernel, and what its launcher is made of
LIKE = ref("like")
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
    c: Compiled, name: str, k: Made, rows: Made | None, kernels: str = "sequential_forward", keeps: bool = True
) -> Function:
    """The function that makes outputs, last states and checkpoints; these where it isn't told, if it `keeps` them. The names of
    its kernels begin with `kernels`."""
    body: list[Statement] = [
        *_measure(c),
        *_cut(k, 2048),
        Define(("layout",), Expr("layout_of(batch, steps, packed, needs_backward)")),
        Call(
            ("start",), "torch_start", tuple(map(Expr, ("given", "states", "constants", "layout.sequences", "heads")))
        ),
        Set(("start",), py("{{name: x.float().contiguous() for name, x in {}.items()}}", ref("start"))),
        Set(("outputs", "partial_sums"), Expr("{}, {}"), empty=True),
    ]
    like = Expr(f'given["{first_input(c)}"]')
    for x in k["outputs"]:
        body.append(_part(x) if x["part"] else Alloc(Entry("outputs", x["key"]), _shape(x), None, like=like))
    body += [
        Table("finals", tuple(Alloc(x["key"], _shape(x), None, like=LIKE) for x in k["finals"])),
        Set(("saved",), Expr("{}"), empty=True),
        If(
            Expr("needs_backward"),
            tuple(Alloc(Entry("saved", x["key"]), _shape(x), None, like=LIKE) for x in k["saved"]),
        ),
        *_launched(c, k, rows, kernels, _warps(k, "warps_for({}, 128)", "warps_for({}, 64)")),
    ]
    for x in k["outputs"]:
        if x["part"]:
            total = py('{}.sum(0).to(given["{}"].dtype)', entry("partial_sums", x["key"]), first_input(c))
            body.append(Set((Entry("outputs", x["key"]),), total))
    body.append(Return(joined(map(ref, ("outputs", "finals", "saved")))))
    told = (
        "(outputs, final states, checkpoints of the states), in recurrent form; no checkpoints unless `needs_backward`."
    )
    return Function(
        name, f"(given, states, constants, packed=None, needs_backward={keeps})", told, tuple(body), frees=False
    )


def steps_backward(c: Compiled, name: str, k: Made, rows: Made | None) -> Function:
    """The function that makes the gradients."""
    tables = ["ends", "workspace", *(["moment"] if rows else []), "initial_gradients", "gradients", "partial_sums"]
    body: list[Statement] = [
        *_measure(c),
        *_cut(k, 4096, backwards=True),
        Define(("layout",), Expr("layout_of(batch, steps, packed)")),
        Table("incoming_steps", tuple(Set((x["key"],), _incoming("cotangents", x)) for x in k["cotangents"])),
        Set(tuple(tables), Expr(", ".join(["{}"] * len(tables))), empty=True),
    ]
    for x in k["states"]:
        end = py("{}.float().contiguous()", _incoming("final_cotangents", x))
        body.append(Set((f'ends["{x["key"]}"]',), end))
        body.append(Alloc(Entry("initial_gradients", x["key"]), _shape(x), None, like=LIKE))
    body += [Alloc(Entry("workspace", x["key"]), _shape(x), None, like=LIKE) for x in k["workspace"]]
    for x in k["per_step"]:
        gradient = Set((f'gradients["{x["key"]}"]',), py('gradient_like(given["{}"], {})', x["key"], x["shape"].whole))
        body.append(_part(x) if x["part"] else gradient)
    for x in k["per_head"]:
        body.append(_part(x) if x["part"] else Alloc(Entry("gradients", x["key"]), _shape(x), None, like=LIKE))
    body += [Alloc(Entry("moment", x["key"]), _shape(x), None, like=LIKE) for x in (rows["moment"] if rows else ())]
    tiled, whole = f"warps_for({k['entries']})", _warps(k, "whole_warps({})", "warps_for({})")
    body += _launched(c, k, rows, "sequential_backward", tiled if k["tiled"] else whole)
    summed = Do(
        Expr("gradients[name] = sums.sum(0)", frozenset({"sums"})), frozenset({Entries("gradients", "partial_sums")})
    )
    body.append(For(("name", "sums"), py("{}.items()", ref("partial_sums")), (summed,), ("sums",)))
    if depends_on_parameters(c):
        through = py("torch_start_gradients(given, states, constants, {})", ref("initial_gradients"))
        added = Do(Expr("gradients[name] = gradients[name] + gradient", frozenset({"gradients", "gradient"})))
        body.append(For(("name", "gradient"), py("{}.items()", through), (added,)))
    for x in k["per_head"]:
        total = entry("gradients", x["key"])
        body.append(Do(py("{} = {}.sum(0)", total, total)))
    wanted = "{{name: {} for name, gradient in {}.items() if name in needs}}"
    typed = py(wanted, "typed_like(given[name], gradient)", ref("gradients"))
    body += [
        Set(("gradients",), typed),
        Return(joined([ref("gradients"), py(wanted, "gradient", ref("initial_gradients"))])),
    ]
    told = "(gradients, gradients of the initial states): the adjoint's steps, over states recomputed from checkpoints."
    head = "(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None)"
    return Function(name, head, told, tuple(body), frees=False)


# --- sizes ----------------------------------------------------------------------------------------------------------


def _measure(c: Compiled) -> Body:
    layout = sizes(c.step)
    heads = ", ".join(_heads_of(c).values())
    return (
        Define(("batch", "steps"), Expr(f"{layout.lead}.shape[:2]")),
        Define(("heads",), Expr(f"max({heads}, 0)")),
        Set(("like",), Expr(f"{layout.lead}.new_zeros((), dtype=torch.float32)")),
        *(Define((f"size_{d}",), Expr(text)) for d, text in layout.dims.items()),
    )


def _heads_of(c: Compiled) -> dict[str, str]:
    return {v.name: f'given["{v.name}"].shape[{2 if v.per_step else 0}]' for v in tensors(c.step)}


def _cut(k: Made, entries: int | str, backwards: bool = False) -> Body:
    """The widths of tiles."""
    smallest, tiled = k["smallest"], k["tiled"]
    found = [Define((f"block_{d}",), Expr(f"block_of(size_{d}, {smallest})")) for d in k["dims"] if d != tiled]
    if not tiled:
        return tuple(found)
    most = ", most=8" if k["partial_sums"] else ""
    way = ", backwards=True" if backwards else ""
    if k["several"]:
        found.append(Define((SEVERAL,), Expr(f"is_narrow({k['beside']}{way})")))
    if k["kernel"].together > 1:
        entries = f"narrow({entries}, {k['beside']}{way})"
    tile = Expr(f"tile_of(size_{tiled}, {k['beside']}, {entries}, {smallest}{most})")
    return (*found, Define((f"block_{tiled}",), tile), Define(("tiles",), Expr(f"-(-size_{tiled} // block_{tiled})")))


def _shape(x: Made) -> Expr:
    found: Expr = x["shape"].entries
    return found


def _part(x: Made) -> Alloc:
    """Room for what each tile has of a result."""
    return Alloc(Entry("partial_sums", x["key"]), py("tiles, *{}", x["shape"].whole), None, like=LIKE)


def _incoming(table: str, x: Made) -> Expr:
    return py('incoming({}.get("{}"), {}, {})', table, x["key"], x["shape"].whole, LIKE)


# --- launches -------------------------------------------------------------------------------------------------------


def _warps(k: Made, states: str, parameters: str) -> str:
    texts = [states.format(k["held"]), *([parameters.format(k["fixed"])] if k["fixed"] else [])]
    return f"max({', '.join(texts)})" if k["fixed"] else texts[0]


def _launched(c: Compiled, k: Made, rows: Made | None, name: str, warps: str) -> Body:
    """A launch of the kernel; of the one over rows, where states are too wide to be held whole."""
    if rows is None:
        return (_launch(c, k, f"{name}_kernel", warps),)
    wide = f"size_{rows['row']} + size_{rows['column']}"
    scratch = Expr(f"layout.sequences * heads, {rows['slots']}, {wide}")
    over_rows: Body = (
        Define(("block_row",), Expr(f"rows_of_tile(block_{rows['column']}, block_{rows['row']})")),
        Alloc("scratch", scratch, None, like=LIKE),
        _launch(c, rows, f"{name}_rows_kernel", warps),
    )
    return (If(Expr(f"too_wide({k['entries']})"), over_rows, (_launch(c, k, f"{name}_kernel", warps),)),)


def _launch(c: Compiled, k: Made, kernel: str, warps: str) -> Launch:
    pointers: list[Pointer] = k["kernel"].pointers
    strided = joined([_passed(x) for x in pointers if x.strides])
    heads = _heads_of(c)
    places = [py("*strides_of({})", strided), *(Expr(f'constants["{key}"]') for _, key in k["constants"])]
    places += map(Expr, ("layout.table", "heads", *(f"heads // max({heads[key]}, 1)" for _, key in k["groups"])))
    places += map(Expr, ("steps", "layout.segment", "batch * steps"))
    words = [(w, Expr(w)) for d in k["dims"] for w in (f"size_{d}", f"block_{d}")]
    tiled = k["tiled"]
    return Launch(
        kernel,
        Expr(f"layout.sequences * heads{' * tiles' if tiled else ''}"),
        tuple(_argument(k, x) for x in pointers),
        tuple(places),
        (*words, *([("tiles", Expr("tiles"))] if tiled else []), *([(SEVERAL, Expr(SEVERAL))] if k["several"] else [])),
        tuple((n, Expr(text)) for n, text in _options(c, k, warps)),
        frozenset({STEPS, HEADS, *([TILES] if tiled else [])}),
    )


def _options(c: Compiled, k: Made, warps: str) -> Iterable[tuple[str, str]]:
    if "slots" in k:
        column = k["column"]
        return (
            ("slots", str(k["slots"])),
            ("block_row", "block_row"),
            ("num_warps", f"warps_for(block_row * block_{column})"),
        )
    if not k["loaded"]:
        return (("num_warps", warps),)
    entries = f"({k['loaded']}) * {sizes(c.step).lead}.element_size()"
    return (("num_warps", f"max({warps}, warps_for({k['loaded']}, 64))"), ("num_stages", f"stages_for({entries})"))


def _argument(k: Made, x: Pointer) -> Passed:
    """What a launch passes for a tensor. Tiles have places of their own, or the first of them alone stores."""
    stores = x.role in STORED
    over = frozenset({STEPS, HEADS, *([TILES] if k["tiled"] else [])}) if stores else frozenset[str]()
    return Passed(_passed(x), x.role in LOADED, stores, over)


def _passed(x: Pointer) -> Expr:
    if x.role == "scratch":
        return ref("scratch")
    return Expr(f'saved.get("{x.key}")', frozenset({"saved"})) if x.role == "kept" else entry(x.role, x.key)
