"""Programs of ops, and solves of systems: conjugate gradients, Neumann iterations, and how their kernels are launched.

Ops in a program are called as usual, through `op/`; here is what a system of equations needs besides.
"""
