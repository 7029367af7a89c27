"""`from chunkform.generated import name` gives the op, in whatever order its module and the package are imported."""

import pytest
from shared.forked import code

IMPORTS = {
    "the op": "from chunkform.generated import retention",
    "the op from its module": "from chunkform.generated.retention import retention",
    "the module, then the op": "import chunkform.generated.retention\nfrom chunkform.generated import retention",
    "an attribute": "import chunkform.generated\nretention = chunkform.generated.retention",
    "an attribute of the module": "import chunkform.generated.retention\nretention = chunkform.generated.retention",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_a_name_is_its_op(how):
    text = f"{IMPORTS[how]}\nimport types; assert isinstance(retention, types.FunctionType), retention"
    done = code(text)
    assert done.returncode == 0, done.stderr


def test_an_unknown_op_is_named_with_those_that_exist():
    import chunkform.generated

    with pytest.raises(AttributeError, match=r"no op 'nothing'; there are comba, .*delta_rule"):
        _ = chunkform.generated.nothing


def test_the_ops_are_listed():
    import chunkform.generated

    assert "lightning_attention" in dir(chunkform.generated)
