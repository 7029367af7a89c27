"""The model of a pass's time: never under the memory lower bound, and it moves as bytes, work and parallelism do."""

import pytest
from shared.spec_files import catalogue, compiled_once

from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.chunkwise.cost import Sizes
from chunkform.codegen.recurrence.compiled_cost import forward_cost
from chunkform.codegen.recurrence.explain import explanation
from chunkform.codegen.recurrence.over_chunks import why_stepwise
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.predict import H200, as_data, predict
from chunkform.codegen.recurrence.triton.section import TritonForm
from chunkform.spec.language import Recurrence, find, tanh

S1, S2, S4 = (8, 4096, 16, 128), (1, 32768, 16, 128), (1, 4096, 16, 128)
CHUNKED = ("lightning_attention", "gated_linear_attention", "gated_delta_rule", "kimi_delta_attention")


def compiled(name):
    return compiled_once(next(r for r in catalogue() if r.name == name))


@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("shape", [S1, S2, S4, (8, 4096, 32, 64), (1, 131072, 8, 128), (8, 4096, 8, 256)])
def test_no_pass_is_predicted_under_its_lower_bound(name, shape):
    p = predict(compiled(name), shape)
    for x in (p.forward, p.backward):
        assert x.seconds > x.moving >= x.lower_bound > 0
        assert x.seconds == max(x.moving, x.computing) + x.starting


def test_the_lower_bound_is_the_bytes_of_arguments_and_results_at_the_rate_of_a_copy():
    c = compiled("lightning_attention")
    p = predict(c, S1)
    per_token = forward_cost(c, Sizes({"d": 128, "e": 128})).lower_bound
    assert p.forward.lower_bound == pytest.approx(8 * 4096 * 16 * per_token / H200.copy)
    assert p.forward.lower_bound == pytest.approx(127e-6, rel=0.01)


def test_a_hand_written_sweep_is_predicted_within_a_tenth():
    forward = predict(compiled("lightning_attention"), S1).forward
    assert forward.seconds == pytest.approx(226e-6, rel=0.1)
    assert forward.segments == 1


def test_few_heads_and_batches_are_cut_into_segments():
    many, few = (predict(compiled("lightning_attention"), shape).forward for shape in (S1, S2))
    assert few.segments > 1 and many.segments == 1
    assert many.seconds < few.seconds < 2 * many.seconds  # the same tokens: a sweep more, and not a GPU left idle


def test_more_work_takes_longer():
    plain, channels, solved, both = (predict(compiled(name), S1).forward.seconds for name in CHUNKED)
    assert plain < channels < both and plain < solved < both
    short, long = (predict(compiled("gated_delta_rule"), (8, t, 16, 128)).backward for t in (4096, 8192))
    assert long.seconds - long.starting == pytest.approx(2 * (short.seconds - short.starting))


def test_wider_elements_move_more_bytes():
    half, full = (predict(compiled("lightning_attention"), S1, element=n).forward for n in (2, 4))
    assert 1.9 < full.moving / half.moving <= 2.0
    assert full.computing == half.computing


def test_what_is_in_recurrent_form_is_not_predicted():
    assert predict(compiled("gradient_descent_logistic")) is None


def test_as_data_is_in_microseconds():
    p = predict(compiled("lightning_attention"), S4)
    data = as_data(p)
    assert data["shape"] == {"B": 1, "T": 4096, "H": 16, "D": 128} and data["machine"] == "NVIDIA H200"
    assert data["backward"]["us"] == pytest.approx(1e6 * p.backward.seconds, abs=0.1)


def square():
    """Its kernels would have two axes of one dim."""
    r = Recurrence("square")
    d = r.dims("d")
    k, g = r.inputs("k", d), r.inputs("g")
    S = r.state("S", d, d)
    r.update(S, tanh(g) * S.prev + k * k.T)
    r.output("o", S.next * k)
    return r


def test_nothing_is_printed_for_it(monkeypatch):
    """Costs, predictions and explanations read the plan, the kernels' form, and the functions that launch these."""

    def text(self):
        raise AssertionError("kernels were printed")

    monkeypatch.setattr(TritonForm, "text", property(text))
    c = compile_spec(find("gated_linear_attention")[0])
    assert predict(c, S1).backward.seconds > 0
    found = explanation(c)
    assert found["triton_reason"] is None and found["sweeps"]


def test_why_kernels_do_not_go_over_chunks_is_what_a_file_says():
    for spec in (*(find(name)[0] for name in CHUNKED), square()):
        c = compile_spec(spec)
        assert why_stepwise(c) == triton_section(c).stepwise
    assert why_stepwise(c) is not None
