"""The functions that launch kernels: `triton_forward` and `triton_backward`, as an op calls them."""
