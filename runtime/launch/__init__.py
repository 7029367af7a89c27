"""Launching kernels: layouts of packed sequences, configurations and their tables, compiling side by side, replays."""
