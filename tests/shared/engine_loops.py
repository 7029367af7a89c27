"""What vLLM's and SGLang's functions do, as loops over tokens in float64, written without any of our code."""

import itertools

import torch

H, HV, K, V, P = 2, 4, 8, 6, 12


def loop(q, k, v, g, beta, scale, normalise, read, written, starts=None):
    """Token by token in float64. read(n): the state that sequence n starts from, None for padding; written(n, t, state)."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    out = torch.zeros(v.shape, dtype=torch.float64)
    spans = [(n, 0, v.shape[1]) for n in range(v.shape[0])]
    if starts is not None:
        spans = [(0, int(a), int(b)) for a, b in itertools.pairwise(starts)]
    for n, (entry, begin, end) in enumerate(spans):
        first = read(n)
        if first is None:
            continue
        state = first.double().clone()
        for t in range(begin, end):
            for h in range(HV):
                query, key = q[entry, t, h // (HV // H)], k[entry, t, h // (HV // H)]
                if normalise:
                    query, key = (x / (x.square().sum() + 1e-6).sqrt() for x in (query, key))
                decay = g[entry, t, h].exp()
                state[h] = state[h] * (decay[:, None] if decay.dim() else decay)
                state[h] += torch.outer(key, beta[entry, t, h] * (v[entry, t, h] - state[h].T @ key))
                out[entry, t, h] = scale * state[h].T @ query
            written(n, t - begin, state)
    return out


def tokens(*lead, kda=False, seed=0):
    torch.manual_seed(seed)
    return {
        "q": torch.randn(*lead, H, K),
        "k": torch.randn(*lead, H, K) / 2,
        "v": torch.randn(*lead, HV, V),
        "g": -torch.rand(*lead, HV, *([K] if kda else [])),
        "beta": torch.rand(*lead, HV),
    }


def blocks(v_first, rows=P):
    torch.manual_seed(1)
    states = torch.randn(rows, HV, K, V)
    return states.mT.contiguous() if v_first else states


def of(pool, row, v_first):
    return pool[row].mT if v_first else pool[row]


def put(pool, row, state, v_first):
    pool[row] = (state.mT if v_first else state).to(pool.dtype)
