"""Pairwise attentions: the op as users call it, its torch form, its kernels' shared parts, rings over several GPUs.

What it shares with recurrences, such as arguments and autograd, is in `op/`. Its own kernels are in each generated file.
"""
