"""Layers around the generated ops, for any PyTorch model.

mixer = Mixer("gated_delta_rule", width=512, heads=8)
y = mixer(x)                                            # [B, T, 512] -> the same
"""

from .convolution import ShortConvolution
from .mixer import Cache, Mixer

__all__ = ["Cache", "Mixer", "ShortConvolution"]
