"""The compiler of pairwise attention: an energy of pairs -> features, a tile function, gradients, kernels."""
