"""Passes over a plan before kernels are printed from it: what is computed where, and what is read of what.

Each takes a plan and returns one.
"""
