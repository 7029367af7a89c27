"""The dual form of a linear layer: training it by gradient descent is attention over its training points.

    W_T x = c_0 W_0 x + Attention(keys, values, x),    Attention(K, V, x) = sum_t <k_t, x> v_t
    keys: the points x_t,    values: -c_t error_t,      error_t = dLoss / d(W_{t-1} x_t)

(arXiv 2202.05798; for plain gradient descent c_t is the learning rate of step t and c_0 = 1.) `Run` is a training
run, `DualForm` the attention; `Run.dual_form` and `DualForm.run` go from one to the other, `from_weight` finds a dual
form of any matrix, `train` runs gradient descent with the generated ops, and `record` watches a `torch.nn.Linear`
that somebody else trains.

Shapes: points [..., T, n], errors and targets [..., T, m], weights [..., m, n], with any leading axes. Everything is
computed in the dtype that it is given in.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chunkform.errors import ArgumentError

LINKS = {"squared": lambda z: z, "logistic": torch.sigmoid}  # error = link(W x) - y


def attention(keys: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """sum_t <k_t, x> v_t, without a softmax. keys [..., T, n], values [..., T, m], x [..., N, n] -> [..., N, m]."""
    return (x @ keys.mT) @ values


# --- schedules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """What happens at each of T points: V <- mu V + error x^T + penalty W, then W <- keep W - rate V.

    Each is [..., T], or None for a rate's companions that do nothing: `momentum` mu (0), `keep` (1: weight decay
    keeps 1 - omega, as AdamW's does), `penalty` (0: an L2 penalty's gradient, as the weight_decay of
    `torch.optim.SGD` is).
    """

    rates: Tensor
    momentum: Tensor | None = None
    keep: Tensor | None = None
    penalty: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("rates", "momentum", "keep", "penalty"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
                raise ArgumentError(f"Schedule: {name} must be a floating-point tensor [..., T], got {_said(value)}")
            if value.shape[-1] != self.rates.shape[-1]:
                raise ArgumentError(
                    f"Schedule: {name} has T = {value.shape[-1]}, but rates has T = {self.rates.shape[-1]}"
                )

    @classmethod
    def constant(
        cls, points: int, rate: float, momentum: float = 0.0, keep: float = 1.0, penalty: float = 0.0, **kind: Any
    ) -> Schedule:
        """The same at each point. `kind`: dtype and device of the tensors."""
        return cls.minibatches([1] * points, rate, momentum, keep, penalty, **kind)

    @classmethod
    def minibatches(
        cls,
        sizes: Sequence[int],
        rate: float | Sequence[float],
        momentum: float = 0.0,
        keep: float = 1.0,
        penalty: float = 0.0,
        mean: bool = False,
        dtype: torch.dtype | None = None,
        device: object = None,
    ) -> Schedule:
        """Steps of several points that share one W: `sizes` points each, with one rate or one rate a step.

        Points of a minibatch are steps that leave W alone (rate 0, keep 1) while V adds up (mu 1); its first point
        applies the momentum, its last the rate. So the ops that train point by point train on minibatches as they
        are. With `mean`, a minibatch's loss is the mean over its points instead of the sum.
        """
        if any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
            raise ArgumentError(f"Schedule.minibatches: sizes must be whole numbers of at least 1, got {list(sizes)}")
        each = [float(rate)] * len(sizes) if isinstance(rate, int | float) else [float(x) for x in rate]
        if len(each) != len(sizes):
            raise ArgumentError(
                f"Schedule.minibatches: rate must hold one number for each of {len(sizes)} minibatches, got {len(each)}"
            )
        rates, mu, kept, penalties = [], [], [], []
        for i, (size, eta) in enumerate(zip(sizes, each, strict=True)):
            # With `mean`, V is held as `size` times what it is, and that factor changes where sizes do.
            grown = size / sizes[i - 1] if mean and i else 1.0
            rates += [0.0] * (size - 1) + [eta / size if mean else eta]
            mu += [momentum * grown] + [1.0] * (size - 1)
            kept += [1.0] * (size - 1) + [keep]
            penalties += [penalty * size if mean else penalty] + [0.0] * (size - 1)

        def tensor(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype or torch.get_default_dtype(), device=device)

        several = any(s > 1 for s in sizes)
        return cls(
            tensor(rates),
            tensor(mu) if momentum or several else None,
            tensor(kept) if keep != 1 else None,
            tensor(penalties) if penalty else None,
        )

    def to(self, *where: object) -> Schedule:
        """On another device, or in another dtype, as `Tensor.to` has it."""
        return Schedule(*(None if x is None else x.to(*where) for x in self._parts))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """(c_0 [...], c [..., T]): W_T = c_0 W_0 - sum_t c_t error_t x_t^T, if V_0 = 0.

        From the last point back, with b_t what is left of W_t in W_T: c_t = rate_t b_t + mu_{t+1} c_{t+1}, and
        b_{t-1} = keep_t b_t - penalty_t c_t.
        """
        given = torch.broadcast_tensors(*(x for x in self._parts if x is not None))
        found = iter(given)
        rates, mu, keep, penalty = (None if x is None else next(found) for x in self._parts)
        assert rates is not None
        left, later = torch.ones_like(rates[..., 0] if rates.shape[-1] else rates.sum(-1)), None
        out: list[Tensor] = []
        for t in range(rates.shape[-1] - 1, -1, -1):
            c = rates[..., t] * left
            if mu is not None and later is not None:
                c = c + mu[..., t + 1] * later
            if keep is not None:
                left = keep[..., t] * left
            if penalty is not None:
                left = left - penalty[..., t] * c
            out.append(c)
            later = c
        return left, torch.stack(out[::-1], -1) if out else torch.zeros_like(rates)

    @property
    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.rates, self.momentum, self.keep, self.penalty


# --- the two sides ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DualForm:
    """A linear layer as attention: W x = initial x + Attention(keys, values, x).

    keys [..., T, n], values [..., T, m], initial [..., m, n] or None for zero.
    """

    keys: Tensor
    values: Tensor
    initial: Tensor | None = None

    def __post_init__(self) -> None:
        _points("DualForm", self.keys, "keys")
        _points("DualForm", self.values, "values")
        if self.keys.shape[-2] != self.values.shape[-2]:
            raise ArgumentError(
                f"DualForm: keys has T = {self.keys.shape[-2]}, but values has T = {self.values.shape[-2]}"
            )
        _weight("DualForm", self.initial, "initial", self.values.shape[-1], self.keys.shape[-1])

    def __call__(self, x: Tensor) -> Tensor:
        """W x for each of N points: [..., N, n] -> [..., N, m], without forming W."""
        found = attention(self.keys, self.values, x)
        return found if self.initial is None else found + x @ self.initial.mT

    def scores(self, x: Tensor) -> Tensor:
        """<k_t, x>: how much each training point has to do with each of N points, [..., N, T]."""
        return x @ self.keys.mT

    @property
    def weight(self) -> Tensor:
        """W = initial + V K^T, [..., m, n]."""
        added = self.values.mT @ self.keys
        return added if self.initial is None else self.initial + added

    def merged(self, other: DualForm) -> DualForm:
        """The sum of two layers: their pairs side by side."""
        both = [w for w in (self.initial, other.initial) if w is not None]
        return DualForm(
            torch.cat([self.keys, other.keys], -2),
            torch.cat([self.values, other.values], -2),
            sum(both[1:], both[0]) if both else None,
        )

    def run(self, schedule: Schedule | Tensor | float) -> Run:
        """A training run that ends in this layer: the points are the keys, the errors -values / c_t, and W_0 initial / c_0.

        Raises ArgumentError where c_t is zero (that point's error has no influence) and its value isn't.
        """
        s = _schedule("DualForm.run", schedule, self.keys)
        start, c = s.coefficients()
        dead = (c == 0).unsqueeze(-1) & (self.values != 0)
        if bool(dead.any()):
            t = int(dead.nonzero()[0, -2])
            raise ArgumentError(
                f"DualForm.run: point {t} has no influence under this schedule (its learning rate is 0), but its value isn't 0"
            )
        shown = torch.where(c == 0, torch.ones_like(c), c).unsqueeze(-1)
        if self.initial is not None and bool(((start == 0)[..., None, None] & (self.initial != 0)).any()):
            raise ArgumentError(
                "DualForm.run: keep = 0 in the schedule forgets W_0, but the dual form has an initial weight"
            )
        start = torch.where(start == 0, torch.ones_like(start), start)
        first = None if self.initial is None else self.initial / start[..., None, None]
        return Run(self.keys, -self.values / shown, s, first)


@dataclass(frozen=True)
class Run:
    """A linear layer's training: at point t (points [..., T, n]) the loss had the derivative error_t (errors [..., T, m])."""

    points: Tensor
    errors: Tensor
    schedule: Schedule
    initial: Tensor | None = None

    def __post_init__(self) -> None:
        _points("Run", self.points, "points")
        _points("Run", self.errors, "errors")
        for name, length in (("errors", self.errors.shape[-2]), ("schedule", self.schedule.rates.shape[-1])):
            if length != self.points.shape[-2]:
                raise ArgumentError(f"Run: {name} has T = {length}, but points has T = {self.points.shape[-2]}")
        _weight("Run", self.initial, "initial", self.errors.shape[-1], self.points.shape[-1])

    def dual_form(self) -> DualForm:
        """The layer after the last point as attention over the points (exercise 2 of the document, with -c_t made explicit)."""
        start, c = self.schedule.coefficients()
        first = None if self.initial is None else start[..., None, None] * self.initial
        return DualForm(self.points, -c.unsqueeze(-1) * self.errors, first)

    def predictions(self) -> Tensor:
        """W_{t-1} x_t, what the layer said of each point when it came, [..., T, m]; in recurrent form."""
        m, n = self.errors.shape[-1], self.points.shape[-1]
        lead = torch.broadcast_shapes(
            self.points.shape[:-2],
            self.errors.shape[:-2],
            *(x.shape[:-1] for x in self.schedule._parts if x is not None),
        )
        W = self.points.new_zeros(*lead, m, n) if self.initial is None else self.initial.expand(*lead, m, n)
        V = torch.zeros_like(W)
        out = []
        for t in range(self.points.shape[-2]):
            x, error = self.points[..., t, :], self.errors[..., t, :]
            out.append((W @ x.unsqueeze(-1)).squeeze(-1).expand(*lead, m))
            rate, mu, keep, penalty = (None if p is None else p[..., t, None, None] for p in self.schedule._parts)
            V = error.unsqueeze(-1) * x.unsqueeze(-2) + (0 if mu is None else mu * V)
            V = V if penalty is None else V + penalty * W
            W = (W if keep is None else keep * W) - rate * V
        return torch.stack(out, -2) if out else self.errors.new_zeros(*lead, 0, m)

    def targets(self, loss: str = "squared") -> Tensor:
        """The targets y_t for which gradient descent on `loss` makes these errors: link(W_{t-1} x_t) - error_t, [..., T, m].

        Of the logistic loss any real target has a gradient, but only errors between sigmoid - 1 and sigmoid have a
        label in [0, 1].
        """
        return _link("Run.targets", loss)(self.predictions()) - self.errors


# --- training ---------------------------------------------------------------------------------------------------------


def train(
    points: Tensor,
    targets: Tensor,
    schedule: Schedule | Tensor | float,
    loss: str = "squared",
    initial: Tensor | None = None,
    backend: str | None = None,
) -> Run:
    """Gradient descent on W: the loss is |W x - y|^2 / 2 ("squared") or the logistic one. Gradients flow through it.

    points [..., T, n], targets [..., T, m], initial [..., m, n]; the schedule may be a number or a tensor [..., T] of
    learning rates. One call of a generated op: `gradient_descent_squared` (over chunks in parallel),
    `gradient_descent_logistic` (in recurrent form), or their forms with momentum and weight decay. It asks for W_t x_{t+1}
    at each step, which is what the next error is made of.

    Raises:
        chunkform.errors.ArgumentError: shapes that don't fit; a penalty, which no op has (use `keep`); a momentum or
            keep outside [0, 1].
    """
    _points("train", points, "points")
    _points("train", targets, "targets")
    link = _link("train", loss)
    s = _schedule("train", schedule, points)
    if targets.shape[:-1] != points.shape[:-1]:
        raise ArgumentError(
            f"train: targets must be [..., T, m] with the points' {list(points.shape[:-1])}, got {list(targets.shape)}"
        )
    lead, (steps, n), m = points.shape[:-2], points.shape[-2:], targets.shape[-1]
    _weight("train", initial, "initial", m, n)
    if s.penalty is not None:
        raise ArgumentError("train: a schedule's penalty isn't trained by an op; weight decay is `keep`")
    logs = {}
    for name, key in (("momentum", "log_mu"), ("keep", "log_keep")):
        value = getattr(s, name)
        if value is not None:
            if bool(((value < 0) | (value > 1)).any()):
                raise ArgumentError(f"train: the schedule's {name} must be in [0, 1], got {_range(value)}")
            logs[key] = value.log()
    name = f"gradient_descent_{loss}"
    if "log_mu" in logs or (logs and loss == "logistic"):
        name, wanted = f"{name}_momentum", ("log_mu", "log_keep")
    else:
        name, wanted = (f"{name}_weight_decay", ("log_keep",)) if logs else (name, ())
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)

    def per_point(x: Tensor) -> Tensor:
        return x.expand(*lead, steps).reshape(math.prod(lead), steps, 1).to(points)

    def flat(x: Tensor) -> Tensor:
        return x.reshape(math.prod(lead), steps, 1, x.shape[-1])

    absent = {"log_mu": -torch.inf, "log_keep": 0.0}
    decays = {k: per_point(logs[k] if k in logs else points.new_full((steps,), absent[k])) for k in wanted}
    W = points.new_zeros(m, n) if initial is None else initial
    first = (W @ points[..., :1, :].mT).mT.expand(*lead, min(steps, 1), m)
    W = W.expand(*lead, m, n).reshape(math.prod(lead), 1, m, n)
    queries = torch.cat([points[..., 1:, :], torch.zeros_like(points[..., :1, :])], -2)
    state = (torch.zeros_like(W), W) if "log_mu" in wanted else W
    seen, _ = op(
        x=flat(points),
        z=flat(queries),
        y=flat(targets.to(points)),
        eta=per_point(s.rates),
        **decays,
        initial_state=state,
        backend=backend,
    )
    seen = seen.reshape(*lead, steps, m)
    return Run(points, link(torch.cat([first.to(seen), seen[..., :-1, :]], -2)) - targets.to(seen), s, initial)


@dataclass
class Recorded:
    """What `record` saw: of each backward pass the points [N, n] and the derivatives of its loss [N, m], N points with one W."""

    initial: Tensor
    points: list[Tensor] = field(default_factory=list)
    errors: list[Tensor] = field(default_factory=list)

    def run(
        self,
        rate: float | Sequence[float],
        momentum: float = 0.0,
        keep: float = 1.0,
        penalty: float = 0.0,
    ) -> Run:
        """The training run, if each backward pass was followed by a step with this rate (or these, one a step).

        `torch.optim.SGD(lr, momentum, weight_decay)` is run(lr, momentum, penalty=weight_decay).
        """
        like: dict[str, Any] = dict(dtype=self.initial.dtype, device=self.initial.device)
        s = Schedule.minibatches([len(x) for x in self.points], rate, momentum, keep, penalty, **like)
        n, m = self.initial.shape[1], self.initial.shape[0]
        points = torch.cat([self.initial.new_zeros(0, n), *self.points])
        return Run(points, torch.cat([self.initial.new_zeros(0, m), *self.errors]), s, self.initial)


@contextlib.contextmanager
def record(layer: nn.Linear) -> Iterator[Recorded]:
    """Watch a layer while it is trained, however its loss is made: `with record(layer) as seen: ...`, then `seen.run(rate)`.

    A layer with a bias is recorded as one without, whose points end with a 1 and whose weight's last column is the
    bias.
    """
    if not isinstance(layer, nn.Linear):
        raise ArgumentError(f"record: layer must be a torch.nn.Linear, got {type(layer).__name__}")
    has_bias = layer.bias is not None
    start = torch.cat([layer.weight, layer.bias[:, None]], 1) if has_bias else layer.weight
    seen = Recorded(start.detach().clone())

    def watch(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        if not out.requires_grad:
            return
        x = given[0].detach().reshape(-1, layer.in_features).clone()
        if has_bias:
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)

        def keep_error(error: Tensor) -> None:
            seen.points.append(x)
            seen.errors.append(error.detach().reshape(-1, layer.out_features).clone())

        out.register_hook(keep_error)

    handle = layer.register_forward_hook(watch)
    try:
        yield seen
    finally:
        handle.remove()


# --- from a matrix ----------------------------------------------------------------------------------------------------


def from_weight(
    weight: Tensor, pairs: int | None = None, keys: Tensor | None = None, initial: Tensor | None = None
) -> DualForm:
    """A dual form of any matrix: W - W_0 = V K^T with T pairs (exercise 1 of the document).

    weight [..., m, n]. With `keys` [..., T, n], the values of least norm for them. Otherwise, with T = `pairs` at
    least n (n when None), the unit vectors as keys and W's columns as values, which is exact, and zero pairs after
    them; with fewer, the singular value decomposition. The least T is the rank of W - W_0. Of one dual form (K, V),
    (K A^T, V A^-1) is another for each invertible A.

    Raises:
        chunkform.errors.ArgumentError: fewer pairs than the rank; keys that don't span the rows of W - W_0.
    """
    if not isinstance(weight, Tensor) or weight.dim() < 2 or not weight.is_floating_point():
        raise ArgumentError(f"from_weight: weight must be a floating-point tensor [..., m, n], got {_said(weight)}")
    m, n = weight.shape[-2:]
    _weight("from_weight", initial, "initial", m, n)
    rest = weight if initial is None else weight - initial
    if keys is not None:
        if pairs is not None:
            raise ArgumentError("from_weight: give pairs or keys, not both")
        _points("from_weight", keys, "keys")
        if keys.shape[-1] != n:
            raise ArgumentError(f"from_weight: keys must be [..., T, {n}], got {list(keys.shape)}")
        values = torch.linalg.pinv(keys).mT @ rest.mT
        left = (rest - values.mT @ keys).norm() / rest.norm().clamp_min(torch.finfo(rest.dtype).tiny)
        if bool(left > _tolerance(rest) * max(keys.shape[-2:])):
            raise ArgumentError(
                f"from_weight: the keys don't span the rows of the weight: the nearest V K^T is off by {float(left):.1e} "
                "of its norm"
            )
        return DualForm(keys.expand(*values.shape[:-2], *keys.shape[-2:]), values, initial)
    count = n if pairs is None else pairs
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ArgumentError(f"from_weight: pairs must be a whole number of at least 0, got {pairs!r}")
    lead = rest.shape[:-2]
    if count >= n:
        found = torch.eye(n, dtype=rest.dtype, device=rest.device).expand(*lead, n, n)
        values = rest.mT
    else:
        left_vectors, sizes, right = torch.linalg.svd(rest, full_matrices=False)
        small = sizes.amax(-1, keepdim=True) * _tolerance(rest) * max(m, n) if sizes.numel() else sizes
        rank = int((sizes > small).sum(-1).max()) if sizes.numel() else 0
        if rank > count:
            raise ArgumentError(
                f"from_weight: the weight has rank {rank}, and {count} key-value pairs make at most rank {count}: "
                f"give at least {rank} pairs"
            )
        kept = min(count, sizes.shape[-1])
        root = sizes[..., :kept].sqrt()
        found = right[..., :kept, :] * root.unsqueeze(-1)
        values = (left_vectors[..., :kept] * root.unsqueeze(-2)).mT
    missing = count - found.shape[-2]
    found = torch.cat([found, found.new_zeros(*lead, missing, n)], -2)
    return DualForm(found, torch.cat([values, values.new_zeros(*lead, missing, m)], -2), initial)


# --- arguments --------------------------------------------------------------------------------------------------------


def _tolerance(x: Tensor) -> float:
    return float(torch.finfo(x.dtype).eps)


def _schedule(what: str, given: Schedule | Tensor | float, points: Tensor) -> Schedule:
    steps = points.shape[-2]
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = points.new_full((steps,), float(given))
    if isinstance(given, Tensor):
        given = Schedule(given)
    if not isinstance(given, Schedule):
        raise ArgumentError(f"{what}: schedule must be a Schedule, a tensor [..., T] or a number, got {_said(given)}")
    if given.rates.shape[-1] != steps:
        raise ArgumentError(f"{what}: the schedule has T = {given.rates.shape[-1]}, but there are {steps} points")
    return given


def _link(what: str, loss: str) -> Any:
    if loss not in LINKS:
        raise ArgumentError(f"{what}: loss must be one of {', '.join(map(repr, LINKS))}, got {loss!r}")
    return LINKS[loss]


def _points(what: str, x: object, name: str) -> None:
    if not isinstance(x, Tensor) or x.dim() < 2 or not x.is_floating_point():
        raise ArgumentError(f"{what}: {name} must be a floating-point tensor [..., T, width], got {_said(x)}")


def _weight(what: str, x: object, name: str, m: int, n: int) -> None:
    if x is not None and (not isinstance(x, Tensor) or x.dim() < 2 or x.shape[-2:] != (m, n)):
        raise ArgumentError(f"{what}: {name} must be a tensor [..., m, n] = [..., {m}, {n}], got {_said(x)}")


def _said(x: object) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} of the shape {list(x.shape)}"
    return type(x).__name__


def _range(x: Tensor) -> str:
    return f"{float(x.min()):g} to {float(x.max()):g}"
