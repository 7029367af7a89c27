"""Sweeps whose warps have roles: a schedule made of a kernel's statements, and the gate that holds it.

How such a kernel is spelt is in `printing/gluon_role.py`; the usual sweeps are in `kernels/`.
"""
