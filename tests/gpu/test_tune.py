"""`chunkform tune` on a GPU: configurations are checked and timed, and the op still gives the same numbers with the choice."""

import pytest

from chunkform.codegen.commands import tune
from chunkform.runtime.launch import launch
from chunkform.spec.language import find


@pytest.mark.alone
def test_configurations_are_checked_and_timed_and_one_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    rows, path = tune.tune_all(find("lightning_attention"), [64], ["bfloat16"], (1, 512, 4))
    assert path.is_relative_to(tmp_path)
    assert rows[0].problem == ""
    assert sum(r.chosen for r in rows) == 1
    assert all((r.ms is not None) == (r.problem == "") for r in rows)
    (best,) = (r for r in rows if r.chosen)
    with launch.using(best.job.config):
        assert tune.checked(best.job).problem == ""
