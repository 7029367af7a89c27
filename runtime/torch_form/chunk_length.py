"""How many steps a chunk has in plain torch, and where costs are counted; what kernels take is in `runtime/launch/launch.py`."""

from __future__ import annotations

CHUNK = 64
CHANNEL_CHUNK = 16  # where each channel has a triangular system of its own
