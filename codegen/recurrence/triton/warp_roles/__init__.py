"""Sweeps whose warps have roles: a schedule made of a kernel's statements, and the gate that holds it."""
