"""Programs of ops: the graph of a `Program`, its adjoint graph, and the op that is printed from both."""
