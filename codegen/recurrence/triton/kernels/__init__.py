"""The kernels of a plan: inter-chunk sweeps, intra-chunk kernels, per-step kernels, scans, the fused backward.

Each is data of `ir/kernel_ir.py`. What is computed where has been decided in `plan_passes/`; who launches them is in
`launch/`.
"""
