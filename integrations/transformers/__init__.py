"""Hugging Face Transformers: its models on generated ops, and models of any recurrence.

from chunkform.integrations.transformers import enable
enable()                              # from now on, every model of the library that has one of our recurrences
with enable(model): ...               # one model, for a while
"""

from .enable import Enabled, enable, models

__all__ = ["Enabled", "enable", "models"]
