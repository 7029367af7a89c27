"""Calls with nothing to do: no sequence, step or head, or packed sequences that are all empty. No kernel is launched for them,
in either pass, with any option; and none is ever given a tensor without entries, which lies at address 0 on a GPU."""

import importlib
import itertools
import pkgutil
from pathlib import Path

import pytest
import torch
from shared.launches import recorded
from shared.structures import sweep

import chunkform.generated
from chunkform.codegen.commands.compile import compile_module
from chunkform.runtime.attention import op as attention
from chunkform.runtime.op import op
from chunkform.spec.language import find

ROOT = Path(__file__).parents[3]
NAMES = [m.name for m in pkgutil.iter_modules(chunkform.generated.__path__[:1]) if not m.ispkg]
DIMS = {"B": 2, "T": 5, "H": 2}
EMPTY = {
    "no sequences": ({"B": 0}, None),
    "no steps": ({"T": 0}, None),
    "no heads": ({"H": 0}, None),
    "nothing at all": ({"B": 0, "T": 0, "H": 0}, None),
    "empty sequences": ({"B": 1, "T": 0}, (0, 0, 0)),
    "one empty sequence": ({"B": 1, "T": 0}, (0,)),
    "empty sequences of no heads": ({"B": 1, "T": 0, "H": 0}, (0, 0)),
}
OPTIONS = [
    {"recompute": recompute, "precision": precision}
    for recompute, precision in itertools.product(("auto", "always", "never"), ("default", "fast", "high"))
]


def generated(name, kind):
    found = vars(importlib.import_module(f"chunkform.generated.{name}"))["OP"]
    return found if isinstance(found, kind) else None


OPS = [n for n in NAMES if generated(n, op.Op)]
ATTENTIONS = [n for n in NAMES if generated(n, attention.AttentionOp)]


@pytest.fixture(autouse=True)
def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that the backend may be chosen; nothing is launched


def arguments(found, sizes, dtype, sequences=None, initial=False, few=(), strided=False):
    """Random arguments of an op, and initial states or None. few: which of the arguments have one head, by place."""
    g = torch.Generator().manual_seed(0)

    def normal(layout, given=sizes):
        shape = [given.get(d, 4) for d in layout]
        x = torch.randn(*shape[:-1], 2 * shape[-1], generator=g)[..., : shape[-1]]
        return x if strided else x.contiguous()

    given = {}
    for n, a in enumerate(found.signature.tensors):
        own = sizes | ({"H": 1} if n in few and sizes["H"] else {})
        x = normal(a.layout, own)
        given[a.name] = -x.abs() if a.kind.startswith("decay") else x.abs().to(dtype if a.kind == "input" else x.dtype)
    given |= {a.name: a.default or 0.5 for a in found.signature.constants}
    first = {"N": sizes["B"] if sequences is None else sequences}
    states = tuple(normal(("N", "H", *dims), sizes | first) for _, dims in found.signature.states) if initial else None
    return given, states


def both_passes(found, given, states, **options):
    """Results, and the gradients of arguments and states, of a loss in which everything counts."""
    leaves = {n: x.requires_grad_() if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    firsts = [x.requires_grad_() for x in states or ()]
    options = {"backend": "triton"} | options
    *outputs, last = found(leaves, initial_state=states, output_final_state=True, **options)
    lasts = list(last) if isinstance(last, tuple) else [last]
    tensors = [x for x in leaves.values() if isinstance(x, torch.Tensor)]
    loss = sum(x.float().sum() for x in outputs) + sum((n + 1) * x.float().sum() for n, x in enumerate(lasts))
    gradients = torch.autograd.grad(loss, [*tensors, *firsts], allow_unused=True)
    return outputs, lasts, gradients[: len(tensors)], gradients[len(tensors) :]


@pytest.mark.parametrize("case", EMPTY)
@pytest.mark.parametrize("name", sweep(OPS))
def test_nothing_is_launched_and_states_stay_as_they_are(name, case):
    found = generated(name, op.Op)
    own, lengths = EMPTY[case]
    if lengths is not None and "packed" not in found.backends["triton"].features:
        pytest.skip("takes no packed sequences")
    sizes, sequences = DIMS | own, None if lengths is None else len(lengths)
    starts = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)])
    turn = (
        3 * (OPS.index(name) + [*EMPTY].index(case)) % len(OPTIONS)
    )  # three options of nine: others for other ops and cases
    for n, options in enumerate(OPTIONS[turn : turn + 3]):
        dtype, initial = (torch.float32 if (turn + n) % 2 else torch.bfloat16), n != 1
        given, states = arguments(found, sizes, dtype, sequences, initial, few=((), (0,), (1, 2))[n % 3], strided=n % 2)
        with recorded() as launches:
            outputs, lasts, gradients, firsts = both_passes(found, given, states, cu_seqlens=starts, **options)
        assert launches == []
        s = found.signature
        shown = [x for x, (n, _) in zip(outputs, s.outputs, strict=True) if n not in s.hidden]
        assert {x.dtype for x in shown} == {given[s.leading.name].dtype}
        assert [tuple(x.shape[:3]) for x in outputs] == [tuple(sizes[d] for d in "BTH")] * len(outputs)
        for a, g in zip(s.tensors, gradients, strict=True):
            assert g is None or g.shape == given[a.name].shape, a.name
            assert g is None or states is None or not g.any(), a.name
        for first, last in zip(states or (), lasts, strict=states is not None):
            torch.testing.assert_close(last.detach(), first.detach().to(last.dtype))
        for k, g in enumerate(firsts):
            assert (g == k + 1).all()
        if states is None:
            _, plain, others, _ = both_passes(found, given, states, cu_seqlens=starts, backend="torch")
            torch.testing.assert_close(lasts, plain)  # what a spec starts from may be made of parameters
            torch.testing.assert_close(gradients, others)


@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "gradient_descent_squared_momentum", "sherman_morrison", "mesa_net"]
)
@pytest.mark.parametrize("case", EMPTY)
def test_nothing_is_launched_where_it_is_traced_or_batched(name, case):
    found = generated(name, op.Op)
    own, lengths = EMPTY[case]
    if lengths is not None and "packed" not in found.backends["triton"].features:
        pytest.skip("takes no packed sequences")
    given, states = arguments(found, DIMS | own, torch.bfloat16, None if lengths is None else len(lengths), True)
    starts = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)])
    c = [given[a.name] for a in found.signature.constants]
    tensors = [given[a.name].requires_grad_() for a in found.signature.tensors]
    for keep in (True, False):
        with recorded() as launches:
            results = found.registered.forward(
                *tensors, *states, starts, *c, (DIMS | own)["H"], "triton", "default", keep, False
            )
            torch.autograd.grad(
                [x for x in results[:-1] if x.requires_grad],
                tensors,
                [torch.zeros_like(x) for x in results[:-1] if x.requires_grad],
                allow_unused=True,
            )
        assert launches == []
    if lengths is None:
        args = [x.detach() for x in tensors]

        def loss(*args):
            named = dict(zip((a.name for a in found.signature.tensors), args, strict=True))
            constants = {a.name: given[a.name] for a in found.signature.constants}
            return found(named | constants, backend="triton")[0].float().sum()

        with recorded() as launches:
            torch.vmap(torch.func.grad(loss))(*(x[None].expand(3, *x.shape) for x in args))
        assert launches == []


@pytest.mark.parametrize("path", ["spec/published/hgrn.py", "tests/codegen/specs/delta_product.py"])
def test_nothing_is_launched_for_scans_and_substeps(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    found = vars(compile_module(find(str(ROOT / path))[0]))["OP"]
    for own, lengths in EMPTY.values():
        sequences = None if lengths is None else len(lengths)
        given, states = arguments(found, DIMS | own, torch.bfloat16, sequences, True)
        starts = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)])
        with recorded() as launches:
            _, lasts, _, firsts = both_passes(found, given, states, cu_seqlens=starts)
        assert launches == []
        assert all(torch.equal(a, b) for a, b in zip(states, lasts, strict=True))
        assert all((g == k + 1).all() for k, g in enumerate(firsts))


@pytest.mark.parametrize("lengths", [(0, 3, 0), (0, 0, 64), (65, 0, 65, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("name", [n for n in OPS if "packed" in generated(n, op.Op).backends["triton"].features])
def test_no_kernel_is_given_an_empty_tensor_where_some_sequences_are_empty(name, lengths):
    found = generated(name, op.Op)
    for n, dtype in enumerate((torch.bfloat16, torch.float32)):
        given, states = arguments(found, {"B": 1, "T": sum(lengths), "H": 2}, dtype, len(lengths), n == 0)
        starts = torch.tensor([0, *itertools.accumulate(lengths)])
        with recorded() as launches:
            both_passes(found, given, states, cu_seqlens=starts)
        assert [x for x in launches if x.empty] == []
        assert launches


@pytest.mark.parametrize("name", [n for n in OPS if generated(n, op.Op).step])
def test_a_decoding_step_without_sequences_or_heads(name):
    found = generated(name, op.Op)
    for sizes in ({"B": 0, "H": 2}, {"B": 2, "H": 0}):
        given, _ = arguments(found, {"T": 1, **sizes}, torch.float32)
        given = {a.name: given[a.name][:, 0] if a.per_step else given[a.name] for a in found.signature.arguments}
        *outputs, _ = found.step(None, given, backend="triton")
        assert all(x.shape[:2] == (sizes["B"], sizes["H"]) for x in outputs)


# --- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"B": 0}, {"T": 0, "S": 0}, {"T": 0, "S": 3}, {"T": 3, "S": 0}, {"H": 0}], ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_launches_nothing_without_sequences_queries_or_keys(name, sizes):
    found = generated(name, attention.AttentionOp)
    s = found.signature
    sizes = {"B": 2, "T": 3, "S": 3, "H": 2} | sizes
    if s.aligned:
        sizes["T"] = sizes["S"]
    nothing = 0 in (sizes["B"], sizes["S"], sizes["H"], sizes["T"] if s.nodes is None else 1)
    for dtype, causal in ((torch.float32, False), (torch.bfloat16, s.nodes is None)):
        given = {}
        for a in s.arguments:
            if a.kind != "constant":
                x = torch.rand([sizes.get(d, 4) for d in a.layout])
                given[a.name] = x.to(dtype if a.per_step else torch.float32).requires_grad_()
            else:
                given[a.name] = a.default
        with recorded() as launches:
            found_ = found(given, causal, s.normaliser == "softmax", backend="triton")
            results = found_ if isinstance(found_, tuple) else (found_,)
            results = [x for x in results if x.requires_grad]
            tensors = [x for x in given.values() if isinstance(x, torch.Tensor)]
            torch.autograd.grad(results, tensors, [torch.ones_like(x) for x in results], allow_unused=True)
        assert [x for x in launches if x.empty] == []
        if nothing:
            assert launches == []
            assert not any(x.isnan().any() for x in results[: len(s.outputs)])
