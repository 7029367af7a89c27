"""Rendering: templates hold the skeleton of a loop, and no mathematics."""

from __future__ import annotations

from typing import Any


def render(template: str, **values: Any) -> str:
    """The text of a template, in which every name must be defined."""
    from ..emit import environment

    return environment().get_template(template).render(**values).strip() + "\n"
