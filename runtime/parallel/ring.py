def ring_attention(*a, **k):
    raise NotImplementedError
