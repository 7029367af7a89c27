"""Which axis is cut into tiles is found by structure: no update may sum over it."""

from shared.recurrent_programs import compiled

from chunkform.codegen.recurrence.stepwise.tiling import OWN, PART, WHOLE, Tiling, tiling


def tilings(name: str) -> tuple[Tiling, Tiling]:
    c = compiled(name)
    p, a = c.step, c.adjoint.program
    axes = [s.axes for s in p.states]
    forward = tiling(list(p.updates.values()), p.outputs, axes)
    return forward, tiling([*p.updates.values(), *a.updates.values()], a.outputs, axes)


def test_columns_that_never_meet_are_tiled() -> None:
    forward, backward = tilings("gradient_descent_logistic")
    assert (forward.dim, backward.dim) == ("m", "m")
    assert forward.kinds == {"o": OWN}
    assert backward.kinds == {"dx": PART, "dz": PART, "dy": OWN, "deta": PART}


def test_a_state_whose_rows_and_columns_meet_stays_whole() -> None:
    for found in tilings("sherman_morrison"):
        assert found.dim is None


def test_an_update_that_sums_over_both_axes_keeps_them() -> None:
    _, backward = tilings("everything")  # the adjoint of mixing rows and of reading with the state itself
    assert backward.dim is None


def test_what_has_no_tiled_axis_is_written_once() -> None:
    forward, _ = tilings("everything")
    assert forward.dim == "e" and forward.kinds == {"o": OWN, "size": PART}
    _, backward = tilings("channels")
    assert backward.kinds["dz"] == OWN and backward.kinds["dbias"] == WHOLE
