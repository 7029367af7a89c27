"""Where inverse attention is stable: the spectral radius of a step, what products of steps do, and how the first form
explodes."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Growth:
    """Norms of the product of 1, 2, ... steps, for one way to choose k and q."""

    what: str
    norms: np.ndarray


def spectral_radius(lam: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The largest |eigenvalue| of lambda (I - (1 - lambda) k q^T) over |k^T q| <= c, for each lambda and c."""
    ends = [lam - lam * (1 - lam) * u for u in (c, -c)]
    return np.maximum(np.maximum(abs(ends[0]), abs(ends[1])), lam)


def products(steps: int = 60, size: int = 4, seed: int = 0) -> list[Growth]:
    """The product of random steps, always with |k^T q| <= 1: with k and q of any length, of length 1, and equal."""
    rng = np.random.default_rng(seed)
    found = []
    samples = (
        ("|kᵀq| ≤ 1, k and q of any length", False, False),
        ("|k|, |q| ≤ 1", True, False),
        ("q = k, |k| ≤ 1", True, True),
    )
    for what, unit, equal in samples:
        whole, norms = np.eye(size), []
        for _ in range(steps):
            lam = rng.uniform(0.3, 0.95)
            k, q = rng.normal(size=size), rng.normal(size=size)
            if unit:
                k, q = k / np.linalg.norm(k), q / np.linalg.norm(q)
                q = k if equal else q
            else:
                k, q = 4 * k, 4 * q
                q = q - (k @ q - rng.uniform(-1, 1)) * k / (k @ k)
            whole = lam * (np.eye(size) - (1 - lam) * np.outer(k, q)) @ whole
            norms.append(np.linalg.norm(whole, 2))
        found.append(Growth(what, np.array(norms)))
    return found


def state_norms(steps: int = 120, size: int = 8, seed: int = 1) -> dict[str, np.ndarray]:
    """The norm of the state over time, for the first form (which divides by q^T k) and the stable one, on the same
    inputs."""
    rng = np.random.default_rng(seed)
    s_first = s_stable = np.zeros((size, size))
    first, stable = [], []
    for _ in range(steps):
        lam = rng.uniform(0.8, 0.99)
        k, q, o = (x / np.linalg.norm(x) for x in rng.normal(size=(3, size)))
        v = (o - lam * s_first.T @ q) / (q @ k)
        s_first = lam * s_first + np.outer(k, v)
        w = o - lam * s_stable.T @ q
        s_stable = lam * s_stable + (1 - lam) * np.outer(k, w)
        first.append(np.linalg.norm(s_first))
        stable.append(np.linalg.norm(s_stable))
    return {"first form, divides by qᵀk": np.array(first), "stable form": np.array(stable)}


def figure() -> str:
    """The three plots, as SVG text."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": "chunkform", "font.size": 9, "axes.titlesize": 9}):
        whole, (radius, growth, explosion) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
        lam, c = np.meshgrid(np.linspace(0.005, 1, 200), np.linspace(0.02, 4, 200))
        value = spectral_radius(lam, c)
        image = radius.pcolormesh(lam, c, value, cmap="RdBu_r", vmin=0, vmax=2, rasterized=True)
        radius.contour(lam, c, value, levels=[1 + 1e-9], colors="black")
        whole.colorbar(image, ax=radius, label="spectral radius")
        radius.set(xlabel="λ", ylabel="c, the bound on |kᵀq|", title="one step; above the line it grows")
        radius.axhline(1, color="black", linestyle=":", linewidth=1)
        for g in products():
            growth.semilogy(np.arange(1, len(g.norms) + 1), g.norms, label=g.what)
        growth.set(xlabel="steps", ylabel="norm of the product", title="products of steps, each with |kᵀq| ≤ 1")
        growth.legend(loc="upper left", fontsize=7)
        for what, norms in state_norms().items():
            explosion.semilogy(np.arange(1, len(norms) + 1), norms, label=what)
        explosion.set(xlabel="t", ylabel="norm of the state", title="the same inputs, both forms")
        explosion.legend(loc="upper left", fontsize=7)
        out = io.StringIO()
        whole.savefig(out, format="svg", metadata={"Date": None}, dpi=80)
        plt.close(whole)
    text = out.getvalue()
    return text[text.index("<svg") :]
