"""The compiler of pairwise attention: an energy of pairs -> features, a tile function, gradients, kernels.

`pipeline.py` lists the passes in order; `emit.py` writes the file. What all kernels share is in `printing/` and `ir/`.
"""
