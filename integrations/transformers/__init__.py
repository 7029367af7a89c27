"""Hugging Face Transformers: its models on generated ops, and models of any recurrence.

from chunkform.integrations.transformers import enable
enable()                              # from now on, every model of the library that has one of our recurrences
with enable(model): ...               # one model, for a while

from chunkform.integrations.transformers import ChunkformConfig, ChunkformForCausalLM
model = ChunkformForCausalLM(ChunkformConfig(mixer="gated_delta_rule"))
"""

from typing import TYPE_CHECKING

from .enable import Enabled, enable, models

if TYPE_CHECKING:
    from .configuration import ChunkformConfig
    from .modeling import ChunkformForCausalLM, ChunkformModel

__all__ = ["ChunkformConfig", "ChunkformForCausalLM", "ChunkformModel", "Enabled", "enable", "models"]


def __getattr__(name: str) -> type:
    """The model's classes, which load transformers; they are registered with its AutoModel then."""
    if name not in ("ChunkformConfig", "ChunkformForCausalLM", "ChunkformModel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import modeling

    found: type = getattr(modeling, name)
    return found
