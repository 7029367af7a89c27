"""Jinja templates, in one environment: skeletons of files and functions, without mathematics.

Each lies beside the module that renders it. A name that a template uses and is not given is an error.
"""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

FOLDER = Path(__file__).resolve().parent.parent


def render(template: str, **values: object) -> str:
    """The text of a template, named by its path below codegen/, such as `recurrence/generated.py.jinja`."""
    return _environment().get_template(template).render(**values).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
