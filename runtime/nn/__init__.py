"""Layers around the generated ops, for any PyTorch model.

mixer = Mixer("gated_delta_rule", width=512, heads=8)
y = mixer(x)                                            # [B, T, 512] -> the same
"""

from chunkform.errors import need_triton

need_triton()

from .convolution import ShortConvolution  # noqa: E402
from .mixer import Cache, Mixer  # noqa: E402

__all__ = ["Cache", "Mixer", "ShortConvolution"]
