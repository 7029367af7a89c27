"""Kernels that have each of their tiles once, in Gluon."""
