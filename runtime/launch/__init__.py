"""Launching kernels: layouts of packed sequences, configurations and their tables, compiling ahead, replays."""
