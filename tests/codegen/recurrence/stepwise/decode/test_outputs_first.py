"""In the kernel of several steps outputs are sums over the states before a step, where that takes no more sums of matrices."""

import pytest
from shared.op_cases import compiled

from chunkform.codegen.ir.code import RoundedLike
from chunkform.codegen.ir.code_parts import walk_code
from chunkform.codegen.ir.expr import walk
from chunkform.codegen.ir.kernel_ir import If, expressions, statements
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.stepwise.decode.outputs_first import tiled_outputs
from chunkform.codegen.recurrence.stepwise.decode.several import several_steps
from chunkform.codegen.recurrence.stepwise.decode.source import decoding
from chunkform.spec.language import Recurrence, hadamard, sqrt


def matrices(nodes):
    """Sums of matrices that outputs are made of."""
    return [x for x in walk(*nodes.values()) if x.op == "add" and len(x.axes) > 1]


@pytest.mark.parametrize("name", ["gated_delta_rule", "kimi_delta_attention", "value_decay_attention"])
def test_outputs_need_no_state_after_a_step(name) -> None:
    c = compiled(name)
    assert matrices(c.step.outputs) and not matrices(tiled_outputs(c).outputs)


def test_outputs_that_would_take_more_sums_stay() -> None:
    """z^T W_t takes z^T W_{t-1} and z^T V_{t-1}, where W x is needed beside them."""
    c = compiled("gradient_descent_squared_momentum")
    assert matrices(tiled_outputs(c).outputs) == matrices(c.step.outputs)


@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_a_state_is_rounded_only_where_another_step_or_memory_asks_for_it(name) -> None:
    f = several_steps(compiled(name))["function"]

    def rounded(body) -> int:
        return sum(isinstance(y, RoundedLike) for z in statements(body) for e in expressions(z) for y in walk_code(e))

    guarded = [x for x in statements(f.body) if isinstance(x, If) and x.condition.text.startswith("keeps or ends or ")]
    assert len(guarded) == 1 and rounded(guarded[0].body) == rounded(f.body) == len(compiled(name).step.states)


def test_roots_that_would_meet_in_a_product_stay_apart() -> None:
    """sqrt(x) sqrt(x) is x, which the gate of the kernel doesn't see: such a spec was refused as an error of the compiler."""
    r = Recurrence("roots")
    d, e = r.dims("d e")
    q, g = r.inputs("q g", d)
    v = r.inputs("v", e)
    S, s = r.state("S", d, e), r.state("s", d)
    r.update(s, sqrt(g))
    r.update(S, S.prev + s.next * v.T)
    r.output("o", S.next.T * hadamard(s.next, q))
    c = compile_spec(r)
    assert tiled_outputs(c).outputs == c.step.outputs
    assert "def steps_kernel" in decoding(c, has_start=False).text  # which its gate has seen
