"""The refusal of what prints kernels."""


class CannotPrint(Exception):
    """A node that no Triton statement here computes."""
