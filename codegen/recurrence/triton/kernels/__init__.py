"""The kernels of a plan: inter-chunk sweeps, intra-chunk kernels, per-step kernels, scans, the fused backward."""
