"""A plugin of pytest under which models of transformers run on generated ops: `-p chunkform.integrations.transformers.testing`.

`make test-transformers SRC=..` runs the library's own tests of these models so, from a checkout of the version that is installed.
"""

from .enable import enable, models

ON = enable()


def pytest_report_header() -> str:
    """Told at the top of the report."""
    return f"on generated ops: {', '.join(models())}"
