"""A pass: what has a fallback, for an argument that isn't given, is that first."""

from __future__ import annotations

from dataclasses import replace

from ...ir.kernel_ir import Body, KernelFunction, Let, Statement, changed, let


def falling_back(k: KernelFunction) -> KernelFunction:
    """What has a fallback is that first."""

    def change(x: Statement) -> Body:
        if isinstance(x, Let) and x.fallback is not None:
            return (let(x.names[0], x.fallback), replace(x, fallback=None))
        return (x,)

    return replace(k, body=changed(k.body, change))
