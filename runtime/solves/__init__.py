"""Programs of ops, and solves of systems: conjugate gradients, Neumann iterations, and how their kernels are launched."""
