"""An op as users call it: its signature, the checks of its arguments, its passes, autograd, torch's library, decoding.

Recurrences, programs and attentions share it; what pairs need besides is in `attention/`. Kernels and torch forms are below.
"""
