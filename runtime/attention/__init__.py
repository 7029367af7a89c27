"""Pairwise attentions: the op as users call it, its torch form, its kernels' shared parts, rings over several GPUs."""
