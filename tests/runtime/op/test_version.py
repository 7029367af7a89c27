"""A generated file says which runtime it was written for, and another version refuses it in one sentence."""

import pytest

import chunkform
from chunkform.errors import BuildError, VersionError
from chunkform.generated import retention
from chunkform.runtime.op.version import release, written_for

HERE = release(chunkform.__version__)


def test_every_generated_file_says_its_version():
    assert f'written_for("{HERE}", __file__)' in retention.source()


def test_another_version_is_refused_before_the_runtime_is_asked_for_what_it_lacks(tmp_path):
    text = retention.source()
    path = tmp_path / "old.py"
    path.write_text(
        text.replace(f'"{HERE}"', '"0.0"').replace("chunk_layout import LEVELS", "chunk_layout import GONE")
    )
    with pytest.raises(VersionError) as refused:
        exec(compile(path.read_text(), str(path), "exec"), {"__file__": str(path), "__name__": "old"})
    assert str(refused.value) == (
        f"{path} was written by chunkform 0.0, and chunkform {HERE} is installed, whose runtime differs: write it anew with the "
        "command in its first lines, or install chunkform 0.0"
    )
    assert isinstance(refused.value, BuildError) and isinstance(refused.value, ImportError)


def test_patches_dont_count():
    written_for(HERE, "mine.py")
    assert release("1.2.3") == release("1.2.4.dev0") == "1.2"
