"""Launching kernels: layouts of packed sequences, configurations and their tables, compiling side by side, replays.

It knows kernels and GPUs, but no op: what a call means is in `op/`. `tables/` has configurations that were measured.
"""
