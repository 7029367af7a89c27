"""Solves of symmetric positive definite systems, one for each step, with nothing but products: H x = b.

`product` takes and gives vectors [B, H, T, d] in the dtype of the computation (see the generated `..._matrix`). Each solve also
yields its residual |b - H x| / |b| as it goes along, [B, T, H] float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..torch_form.chunks import steps_first

Product = Callable[[Tensor], Tensor]


def conjugate_gradients(
    product: Product, right: Tensor, steps: int, tolerance: float, like: Tensor
) -> tuple[Tensor, Tensor]:
    """(x, residual) after `steps` steps of conjugate gradients from the best multiple of b, so `steps` + 1 products.

    right: [B, T, H, d]; x has its dtype. A system whose residual is at most `tolerance` |b| rests; so does one whose matrix shows
    a direction that isn't positive: its residual stays. `like` has the dtype of the computation.
    """
    b = steps_first(right, _wide(like))
    x, r, p = torch.zeros_like(b), b, b
    delta = size = (b * b).sum(-1, keepdim=True)
    rest = tolerance * tolerance * size
    for _ in range(steps + 1):
        hp = product(p)
        curvature = (p * hp).sum(-1, keepdim=True)
        active = (delta > rest) & (curvature > 0)
        alpha = torch.where(active, delta / torch.where(active, curvature, 1.0), 0.0)
        x = x + alpha * p
        r = r - alpha * hp
        new = (r * r).sum(-1, keepdim=True)
        p = r + torch.where(active, new / torch.where(active, delta, 1.0), 0.0) * p
        delta = torch.where(active, new, delta)
    return _back(x, right), _relative(delta, size)


def neumann(
    product: Product,
    right: Tensor,
    steps: int,
    step: Tensor | float,
    from_right: bool,
    like: Tensor,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(x, residual of the last iterate but one, iterates) of x <- x + step (b - H x), from 0 or from b.

    `step` is a number or [B, T, H]. `keep` keeps x_0 .. x_{steps - 1} as [steps, B, H, T, d].
    """
    b = steps_first(right, _wide(like))
    size = step_of(step, b)
    x = b if from_right else torch.zeros_like(b)
    kept = []
    r = b
    for _ in range(steps):
        if keep:
            kept.append(x)
        r = b - product(x)
        x = x + size * r
    residual = _relative((r * r).sum(-1, keepdim=True), (b * b).sum(-1, keepdim=True))
    return _back(x, right), residual, torch.stack(kept) if keep else None


def through(product: Product, x: Tensor, like: Tensor) -> Tensor:
    """The product with a vector [B, T, H, d], in the dtype of `like`."""
    return _back(product(steps_first(x, _wide(x))), like)


def step_of(step: Tensor | float, like: Tensor) -> Tensor | float:
    """A step size as [B, H, T, 1]."""
    return steps_first(step, like.dtype).unsqueeze(-1) if isinstance(step, Tensor) else step


def unrolled_backward(
    product: Product,
    adjoint: Callable[[Tensor, Tensor, bool], None],
    right: Tensor,
    dx: Tensor,
    iterates: Tensor,
    step: Tensor | float,
    from_right: bool,
    sign: int = -1,
) -> tuple[Tensor, Tensor]:
    """(gradient of b, gradient of the step size [B, T, H]) of the iteration `neumann`.

    `adjoint(cotangent, vector, last)` adds the gradients of the product H p at the vector p, both [B, T, H, d].
    """
    b = steps_first(right, iterates.dtype)
    d = steps_first(dx, iterates.dtype)
    size = step_of(step, b)
    db, dstep = torch.zeros_like(b), torch.zeros_like(b[..., 0])
    for i in range(len(iterates) - 1, -1, -1):
        before = iterates[i]
        weighted = size * d
        db = db + weighted
        dstep = dstep + (d * (b - product(before))).sum(-1)
        adjoint(_steps(sign * weighted), _steps(before), i == 0)
        d = d + sign * product(weighted)
    return _back(db + d if from_right else db, right), dstep.transpose(1, 2)


def simplified_backward(
    product: Product,
    adjoint: Callable[[Tensor, Tensor, bool], None],
    right: Tensor,
    dx: Tensor,
    x: Tensor,
    steps: int,
    step: Tensor | float,
    from_right: bool,
    like: Tensor,
    sign: int = -1,
) -> Tensor:
    """The gradient of b; that of H with the last iterate in the place of every earlier one, which makes it one product's."""
    d = steps_first(dx, _wide(like))
    size = step_of(step, d)
    db = torch.zeros_like(d)
    for _ in range(steps):
        weighted = size * d
        db = db + weighted
        d = d + sign * product(weighted)
    adjoint(_steps(sign * db), x, True)
    return _back(db + d if from_right else db, right)


def _wide(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _steps(x: Tensor) -> Tensor:
    """[B, H, T, d] -> [B, T, H, d]."""
    return x.transpose(1, 2)


def _back(x: Tensor, like: Tensor) -> Tensor:
    return x.transpose(1, 2).to(like.dtype).contiguous()


def _relative(square: Tensor, size: Tensor) -> Tensor:
    """[B, H, T, 1] -> [B, T, H]; 0 where b is."""
    ratio = torch.where(size > 0, square / torch.where(size > 0, size, 1.0), 0.0).sqrt()
    return ratio.squeeze(-1).transpose(1, 2).to(torch.float32).contiguous()
