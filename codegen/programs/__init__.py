"""Programs of ops: the graph of a `Program`, its adjoint graph, and the op that is printed from both.

Its ops are those of `recurrence/` and `attention/`, which compile each; here are solves, the order of calls, and what is
shared.
"""
