"""Row maps that the compiler wrote: what layers do to a step's values before and after a recurrence.

from chunkform.generated.rows import gated_rms_norm
y, _ = gated_rms_norm(x, z, weight)
"""

from .bounded_decay import bounded_decay
from .gate_first_rms_norm import gate_first_rms_norm
from .gated_rms_norm import gated_rms_norm
from .sigmoid_gated_rms_norm import sigmoid_gated_rms_norm
from .softplus_decay import softplus_decay
from .unit import unit

__all__ = [
    "bounded_decay",
    "gate_first_rms_norm",
    "gated_rms_norm",
    "sigmoid_gated_rms_norm",
    "softplus_decay",
    "unit",
]
