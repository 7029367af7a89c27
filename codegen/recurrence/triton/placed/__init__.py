"""Kernels in Gluon that have each of their tiles once: steps made of a kernel's statements, and the gate that holds them.

What the steps are is in `ir/placed_tiles.py`, and how they are spelt in `printing/placed_text.py`; `warp_roles/` has sweeps.
"""
