"""What runs where kernels don't fit a GPU's shared memory: narrower tiles, then the torch form; said once, and remembered."""

import dataclasses
import warnings

import pytest
import torch
from triton.runtime.errors import OutOfResources

from chunkform.errors import FallbackWarning
from chunkform.generated.softmax_attention import OP as SOFTMAX
from chunkform.runtime.attention import torch_form
from chunkform.runtime.attention.passes import AttentionBackend
from chunkform.runtime.launch.launch import candidates, using
from chunkform.runtime.launch.narrowing import FORM, level, narrowed
from chunkform.runtime.op import fits
from chunkform.runtime.op.op import Op
from chunkform.runtime.op.signature import Argument, Backend, Signature

SIGNATURE = Signature("doubled", (Argument("x", "input", ("d",)),), (("s", ("d",)),), (("y", ("d",)),))


@pytest.fixture(autouse=True)
def as_if_on_a_gpu(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that the backend may be chosen
    fits.forget()
    yield
    fits.forget()


def doubled(forward=0, backward=0, features=(), module=""):
    """y = 2 x, whose kernels fit from these levels on; and the levels at which they ran, or tried to."""
    log = []

    def enter(which, fit):
        log.append((which, level()))
        if level() < fit:
            raise OutOfResources(360448, 232448, "shared memory")

    def forwards(fit):
        def run(given, states, constants, **_):
            enter("forward", fit)
            x = given["x"]
            saved = {"factor": torch.full((x.shape[0],), 2.0 + level())}
            return {"y": 2 * x}, {"s": x[:, -1].float()}, saved

        return run

    def backwards(fit):
        def run(given, states, constants, saved, cotangents, final_cotangents, needs, **_):
            enter("backward", fit)
            factor = saved["factor"][:, None, None, None] - level()  # 2 where it was made at this level
            g = cotangents["y"] * factor
            return {"x": g}, {"s": g.new_zeros(g.shape[0], *g.shape[2:])} if "s" in needs else {}

        return run

    backends = {
        "torch": Backend(forwards(0), backwards(0), frozenset(("packed", "mixed"))),
        "triton": Backend(
            forwards(forward), backwards(backward), frozenset(features), saved={"factor": (("B",), "wide")}
        ),
    }
    return Op(SIGNATURE, backends, module=module), log


def call(op, grad=True, seed=0, **options):
    x = torch.randn(1, 5, 2, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)
    y, _ = op({"x": x}, backend="triton", **options)
    assert torch.equal(y, 2 * x)
    return x, y


def go_back(x, y):
    (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(g, torch.full_like(x, 2.0))


@pytest.mark.parametrize(("fit", "instead"), [(1, "narrower tiles"), (2, "narrower tiles"), (FORM, "torch form")])
def test_a_forward_pass_that_does_not_fit_falls_back_and_says_so_once(fit, instead):
    op, log = doubled(forward=fit)
    with pytest.warns(FallbackWarning, match=instead) as said:
        call(op, grad=False)
    (one,) = said
    assert "doubled: d = 3 in float32 need 360448 bytes of shared memory, of which this GPU has 232448" in str(
        one.message
    )
    assert log == [("forward", n) for n in range(fit + 1)]
    log.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(op, grad=False)
    assert log == [("forward", fit)]


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
@pytest.mark.parametrize("fit", [1, 2, FORM])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_both_passes_have_one_level(fit, recompute):
    op, log = doubled(backward=fit)
    go_back(*call(op, recompute=recompute))
    log.clear()
    go_back(*call(op, recompute=recompute))
    again = [("forward", fit)] * (recompute == "always")
    assert log == [("forward", fit), *again, ("backward", fit)]


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
def test_what_was_saved_at_another_level_is_computed_again():
    op, _ = doubled(backward=1)
    earlier = [call(op, recompute="never", seed=n) for n in range(3)]
    for x, y in earlier:
        go_back(x, y)


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
@pytest.mark.parametrize("fit", [1, FORM])
def test_passes_are_recorded_at_the_level_that_fits(fit):
    op, log = doubled(backward=fit, features=("replays",))
    for _ in range(6):
        go_back(*call(op, recompute="never"))
    log.clear()
    go_back(*call(op, recompute="never"))
    assert log == ([("forward", FORM), ("backward", FORM)] if fit == FORM else [])  # the torch form may look at numbers


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
def test_a_forward_pass_alone_does_not_follow_a_backward_pass():
    op, log = doubled(backward=FORM)
    go_back(*call(op))
    log.clear()
    call(op, grad=False)
    assert log == [("forward", 0)]


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
def test_numbers_of_deterministic_calls_depend_on_no_call_before():
    op, log = doubled(backward=1)
    for _ in range(2):
        log.clear()
        go_back(*call(op, deterministic=True, recompute="never"))
        assert log[0] == ("forward", 0) and log[-2:] == [("forward", 1), ("backward", 1)]


@pytest.mark.filterwarnings("ignore::chunkform.errors.FallbackWarning")
@pytest.mark.parametrize("fit", [1, FORM])
@pytest.mark.parametrize("first", ["forward", "backward"])
def test_ops_of_torchs_library_fall_back(fit, first):
    op, _ = doubled(**{first: fit}, module="tests.doubled_fits")
    for n in range(3):
        x = torch.randn(1, 5, 2, 3, generator=torch.Generator().manual_seed(n)).requires_grad_()
        y = op.registered([x, None], None, {}, (2, "triton", "default", True, False))[0]
        assert torch.equal(y, 2 * x)
        go_back(x, y)


def test_what_is_measured_falls_back_to_nothing():
    op, _ = doubled(forward=1)
    with using(candidates(4, 16)[0]), pytest.raises(OutOfResources):
        call(op, grad=False)


def test_within_a_pass_nothing_changes_its_level():
    op, _ = doubled(forward=2)
    with narrowed(1), pytest.raises(OutOfResources):
        call(op, grad=False)
    assert level() == 0


def test_several_steps_that_do_not_fit_go_one_by_one(monkeypatch):
    """Each a launch of its own, or in torch where that doesn't fit either. What runs is remembered."""
    from chunkform.generated.gated_delta_rule import gated_delta_rule
    from chunkform.runtime.op import decode

    def too_large(self, *_):
        tries.append(self)
        raise OutOfResources(360448, 232448, "shared memory")

    tries: list[object] = []
    given = dict(zip("qkv", torch.randn(3, 2, 3, 2, 20), strict=True))
    given |= {"beta": torch.rand(2, 3, 2), "log_alpha": -torch.rand(2, 3, 2)}
    pools = [torch.randn(4, 2, 20, 20) for _ in range(3)]
    pools[1:] = [pools[0].clone() for _ in range(2)]
    rows, accepted = torch.tensor([3, 1]), torch.tensor([2, 3])
    wanted, drafts = gated_delta_rule.draft(pools[0], **given, state_indices=rows, backend="torch")
    gated_delta_rule.commit(drafts, accepted)
    monkeypatch.setattr(decode.Launch, "__call__", too_large)
    with pytest.warns(FallbackWarning, match="one by one") as told:
        for keep, pool in (("replay", pools[1]), ("copies", pools[2])):
            found, drafts = gated_delta_rule.draft(pool, **given, state_indices=rows, keep=keep, backend="triton")
            assert torch.equal(found, wanted)
            gated_delta_rule.commit(drafts, accepted)
            assert torch.equal(pool, pools[0])
        tried = len(tries)
        gated_delta_rule.draft(pools[1], **given, state_indices=rows, keep="replay", backend="triton")
    assert len(tries) == tried
    assert sum("one by one" in str(x.message) for x in told) == 3


def test_a_step_that_does_not_fit_runs_in_torch(monkeypatch):
    from chunkform.generated.lightning_attention import lightning_attention
    from chunkform.runtime.op import decode

    def too_large(*_):
        tries.append(1)
        raise OutOfResources(360448, 232448, "shared memory")

    tries: list[int] = []
    monkeypatch.setattr(decode.Launch, "__call__", too_large)
    given = dict(zip("qkv", torch.randn(3, 1, 2, 40), strict=True)) | {"log_lam": -torch.rand(1, 2)}
    wanted = lightning_attention.step(None, **given, backend="torch")
    with pytest.warns(FallbackWarning, match=r"lightning_attention.step: .*\bneed 360448 bytes of shared memory"):
        found = lightning_attention.step(None, **given, backend="triton")
    again = lightning_attention.step(None, **given, backend="triton")
    assert len(tries) == 1
    for x in (found, again):
        assert torch.equal(x[0], wanted[0]) and torch.equal(x[1], wanted[1])


# --- attentions --------------------------------------------------------------------------------------------------------


def attention(forward=0, backward=0):
    """Softmax attention whose kernels, which the torch form stands for, fit from these levels on; and the levels at which they
    ran, or tried to."""
    log = []

    def kernels(which, fit):
        def run(*arguments):
            log.append((which, level()))
            if level() < fit:
                raise OutOfResources(360448, 101376, "shared memory")
            return getattr(torch_form, which)(*arguments)

        return run

    triton = AttentionBackend(kernels("forward", forward), kernels("backward", backward))
    return dataclasses.replace(SOFTMAX, backends={"torch": SOFTMAX.backends["torch"], "triton": triton}), log


def attend(op, backend="triton", **options):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 5, 2, 3, generator=g).requires_grad_() for _ in "qkv")
    y = op({"q": q, "k": k, "v": v, "scale": None}, backend=backend, **options)
    return [y, *torch.autograd.grad(y.sin().sum(), (q, k, v))]


@pytest.mark.parametrize(("fit", "instead"), [(1, "narrower tiles"), (2, "narrower tiles"), (FORM, "torch form")])
@pytest.mark.parametrize("which", ["forward", "backward"])
def test_an_attention_that_does_not_fit_falls_back_and_says_so_once(which, fit, instead):
    op, log = attention(**{which: fit})
    with pytest.warns(FallbackWarning, match=instead) as said:
        found = attend(op)
    (one,) = said
    assert "softmax_attention: D = 3, E = 3 in float32 need 360448 bytes of shared memory" in str(one.message)
    tried = range(min(fit + 1, FORM))
    assert [x for x in log if x[0] == which] == [(which, n) for n in tried]
    log.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = attend(op)
    assert log == ([("forward", fit), ("backward", fit)] if fit < FORM else [])
    torch.testing.assert_close(found, attend(SOFTMAX, "torch"))
    torch.testing.assert_close(again, found)
