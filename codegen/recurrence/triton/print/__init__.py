"""Names in printed kernels: of what the compiler makes, and of what a spec's author named.

Neither may meet the other.
"""
