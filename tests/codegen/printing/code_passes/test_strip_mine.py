"""Statements of sweeps, slice by slice; how many chunks are prefetched; and the tiles of intra-chunk output kernels."""

import importlib
from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.exact.jit_source import body_of
from chunkform.codegen.ir.code import Literal, Name, call
from chunkform.codegen.ir.kernel_ir import For, KernelFunction, Slices
from chunkform.codegen.performance.compile_report import inspect_op, launches_of, report_row
from chunkform.codegen.printing.cannot_print import CannotPrint
from chunkform.codegen.printing.code_passes.in_slices import in_slices
from chunkform.codegen.printing.kernel_text import lines_of
from chunkform.codegen.recurrence.triton.kernels.sweep_kernels import needed_for
from chunkform.codegen.recurrence.triton.launch.launch_plan import Host
from chunkform.codegen.recurrence.triton.section import kernel_plan
from chunkform.runtime.launch import launch
from chunkform.runtime.launch.launch import Config

SETUP = "d = n_d * 2\nS = zeros(2)\nif first:\n    S += load(d)"
ALONG_D = Slices("n_d", Literal(2), ("S",))


def run(loop: str, values: list[int], slices: tuple[Slices, ...] = (ALONG_D,), after: str = "keep(d, S)"):
    """What Python makes of a sweep over two chunks, sliced: S is a list of two slices. The loop's lines, the names, and the
    states that are left, by d."""
    chunks = For("n", call("tl.range", 0, 2), body_of(loop))
    body = (*body_of(SETUP), chunks, *body_of(after))
    k = in_slices(KernelFunction("some", (), (), (), "Some.", body, slices=slices))
    left: dict[int, int] = {}
    text = "\n".join(lines_of(k.body)).replace("tl.static_range", "range").replace("tl.range", "range")
    scope = {"first": True, "zeros": lambda n: 0, "load": lambda d: values[d // 2], "keep": left.__setitem__}
    exec(text, scope)
    (found,) = (x for x in k.body if isinstance(x, For) and x.name == "n")
    return lines_of(found.body), scope, left


def test_sums_over_slices_are_added_up_and_states_carried():
    lines, _, left = run("p = 0\np = S + p\nw = p * 10\nS = S + w + d", [1, 2])
    # chunk 1: p = 3, w = 30, S = 31, 34; chunk 2: p = 65, w = 650
    assert left == {0: 31 + 650, 2: 34 + 650 + 2}
    assert sum("static_range" in x for x in lines) == 2  # all of p is known before w is made


def test_what_a_loop_does_not_need_stays_behind_it_and_what_it_needs_comes_ahead():
    loop = "a = 5\nk = d + 1\nother = 7\nb = a * 2\nq = k + b\nS = S + q\nlate = other"
    lines, _, left = run(loop, [0, 0])
    assert left == {0: 2 * 11, 2: 2 * 13}
    order = [x.strip() for x in lines]
    start = next(n for n, x in enumerate(order) if x.startswith("for n_d"))
    assert order.index("b = a * 2") < start < order.index("other = 7") < order.index("late = other")
    assert sum(x.startswith("for n_d") for x in order) == 1


def test_what_another_loop_uses_is_held_in_a_tuple():
    lines, scope, left = run("k = d + 1\np = 0\np += k\nS = S + k * p", [0, 0])
    assert left == {0: 2 * 4, 2: 2 * 3 * 4}
    assert "k = ()" in lines and isinstance(scope["k"], tuple)


def test_a_whole_sum_is_one_name_in_blocks_and_conditions():
    _, _, left = run("p = 0\nif first:\n    p = p + S\nS = S + p", [1, 2])
    assert left == {0: 1 + 3 + 9, 2: 2 + 3 + 9}


def test_slices_of_two_axes_in_one_statement_are_refused():
    with pytest.raises(CannotPrint, match="two axes: n_d, n_e in what makes S"):
        run("S = S + n_e", [0, 0], (ALONG_D, Slices("n_e", Literal(2), ())))


def test_without_such_axes_nothing_changes():
    k = KernelFunction("some", (), (), (), "Some.", body_of("a = 1\nfor n in range(2):\n    a += 1"))
    assert in_slices(k) is k


def test_as_many_chunks_come_ahead_as_two_programs_have_buffers_for():
    config = Config(chunk=32, tile=64, slice=64, block=32, warps=4, stages=4)
    assert config.stages_for(128 * 2 * 2, 64 * 2) == 4
    assert config.stages_for(128 * 3 * 2, 64 * 2 * 2 + 32 * 2 * 2) == 3
    assert config.stages_for(128 * 2 * 2, 64 * (3 * 4 + 2 * 2)) == 2
    assert config.stages_for(512 * 2 * 4, 0) == 2
    one = Config(chunk=16, tile=32, slice=256, block=32, warps=8, stages=1, itemsize=4)
    assert one.stages_for(512 * 2, 0) == 1


def test_a_multiprocessor_holds_four_programs_that_make_matrices_of_parts_maps():
    config = launch.candidates(2, 128)[0]
    assert config.crowd(128) == 4 and config.crowd(128, slim=False) == 2  # decays for each channel take registers
    assert launch.candidates(2, 256)[0].crowd(256) == launch.candidates(4, 64)[0].crowd(64) == 2
    four, two = config.sweep(128, 256, 64, 2, programs=4), config.sweep(128, 256, 64, 2)
    assert (four.registers, two.registers, launch.candidates(4, 64)[0].sweep(64, 1, 1, 1).registers) == (128, None, 255)
    assert [config.sweep(128, whole, 64, 2, programs=4).stages for whole in (256, 512)] == [4, 2]
    assert config.sweep(128, 768, 64, 4, programs=4) == config.sweep(
        128, 768, 64, 4
    )  # no buffers for two chunks of four
    assert launch.by_launch("ends", "linear", 4) == ((0, "ends", "linear"),)
    assert launch.by_launch("ends", "linear", 2) == ((0, "ends", None), (0, None, "linear"))


def test_elements_are_products_where_three_chunks_of_tiles_fit():
    config = launch.candidates(2, 128)[0]

    def found(*loaded):
        launched = config.sweep(128, *loaded, elements=True)
        return launched.stages, launched.products

    assert config.sweep(128, 512, 128, 4).stages == 4 and found(512, 128, 4) == (3, True)
    assert found(768, 128, 4) == (3, True)
    assert found(768, 128, 6) == (3, False)
    assert found(1024, 128, 4) == (4, True)  # of one program on a multiprocessor
    assert (
        not launch.candidates(4, 128)[0].sweep(128, 16, 16, 1, elements=True).products
    )  # in three parts it would round


def test_a_program_with_tiles_for_two_has_a_multiprocessor_where_few_chunks_of_two_fit():
    """Half of those that are to be under way: two of four, or one of three, with states twice as wide."""
    config = launch.candidates(2, 128)[0]
    many, few = config.sweep(128, 768, 128, 4), config.sweep(128, 1024, 128, 4)
    assert [(x.tile, x.warps, x.programs) for x in (many, few)] == [(64, 4, 2), (128, 8, 1)]
    config = launch.candidates(2, 256)[0]
    two, one = config.sweep(256, 1024, 128, 8), config.sweep(256, 1536, 64, 4)
    assert [(x.tile, x.warps, x.programs) for x in (two, one)] == [(64, 4, 2), (128, 8, 1)]
    assert (
        config.sweep(192, 1536, 64, 4)
        == config.sweep(None, 1536, 64, 4)
        == replace(one, tile=64, warps=4, programs=2, stages=2)
    )
    assert launch.candidates(4, 256)[0].sweep(256, 3072, 64, 8).programs == 2


def test_one_launch_makes_all_reads_where_three_chunks_fit():
    config = launch.candidates(2, 128)[0]
    each = (512, 64, 4), (512, 64, 2)
    one, two = (config.sweep(128, *x) for x in each)
    assert config.by_read(128, (768, 128, 6), *each) == [(0, True, config.sweep(128, 768, 128, 6))]
    assert config.by_read(128, (1536, 128, 6), *each) == [(1, True, one), (2, False, two)]
    assert config.by_read(128, (768, 128, 6), *each, wanted=(False, True)) == [(2, True, two)]  # the other isn't made
    assert config.by_read(128, (1536, 128, 6), *each, wanted=(False, False)) == [(1, True, one), (2, False, two)]


@pytest.mark.parametrize(
    "compiled_ones", [("forward_sweep_1",), pytest.param(("sweep",), marks=pytest.mark.long)], ids=["forwards", "all"]
)
def test_float32_sweeps_have_the_registers_that_there_are(compiled_ones):
    """Given 32, as the assembler chooses, they spill five times as much: the forward sweep first."""
    module = importlib.import_module("chunkform.generated.lightning_attention")
    launches = launches_of(compiled("lightning_attention"), module, "float32", 128)
    sweeps = [x for x in launches if "sweep" in x.kernel.fn.__name__ and x.options["YIELD"]]
    assert len(sweeps) == 4 and {x.options["maxnreg"] for x in sweeps} == {255}
    some = [x for x in sweeps if any(n in x.kernel.fn.__name__ for n in compiled_ones)]
    rows = [report_row(x, "sm_90", "float32", 128, 0) for x in some]
    assert rows and [r for r in rows if not r.ok or r.registers < 128] == []


@pytest.mark.long
def test_as_many_programs_of_a_sweep_as_it_is_launched_for_fit_on_a_multiprocessor(monkeypatch, request):
    def sweeps():
        rows = inspect_op(compiled("kimi_delta_attention"), dtypes=("bfloat16",), widths=(256,))
        return [r for r in rows if "sweep" in r.kernel]

    assert sweeps() and [r for r in sweeps() if not r.ok] == []
    monkeypatch.setattr(launch, "BUFFERS", 2 * launch.BUFFERS)  # more than there is
    Config.sweep.cache_clear()
    request.addfinalizer(Config.sweep.cache_clear)
    assert any("bytes of shared memory, limit 115712" in r.problem for r in sweeps())


def test_what_a_sweep_only_yields_is_not_loaded_for_states():
    loop = body_of("k = load(k_p)\nw = k * S\nq = load(q_p)\nif YIELD:\n    store(q * S)\nS = S + w")
    assert {"k_p", "S"} <= needed_for(loop, {"S"}) and "q_p" not in needed_for(loop, {"S"})
    assert {"k_p", "q_p"} <= needed_for(loop, {"S"}, Name("YIELD"))


def test_what_one_read_loads_is_known():
    for op, loads in {
        "gated_delta_rule": ({"do_p", "q_p"}, {"dv_p", "dk_1_p"}),
        "delta_rule": ({"do_p"}, {"dv_p"}),
    }.items():
        c = compiled(op)
        host = Host(c, kernel_plan(c, c.backward), True, True)
        host.text()
        (sweep,) = (k for k in host.kernels if k.apart)
        for mine, others, read in zip(loads, reversed(loads), sweep.apart, strict=True):
            assert mine <= read.loads and not others & read.loads, (op, read.loads)


def test_tiles_that_read_from_checkpoints_are_never_narrow_in_16_bits():
    config = launch.candidates(2, 256)[0]
    assert config.read_tile == 64 and (config.read_warps(256), config.read_warps(64, 128)) == (8, 4)
    assert config.read_warps(64, 128, many=True) == 8
    exact = launch.candidates(4, 256)[0]
    assert exact.read_tile == exact.tile and exact.read_warps(256) == 4
