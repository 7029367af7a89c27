"""What generated torch forms share: chunks of sequences, decays, coupled states, segments, loops over steps.

Kernels' counterparts are in `chunk_kernels/`; what a test or a CPU runs, and what kernels are compared with, is made of
these.
"""
