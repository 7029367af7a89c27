"""The version of chunkform, which every room may ask for."""

__version__ = "0.1.0"
