"""The functions that launch kernels: `triton_forward` and `triton_backward`, as an op calls them.

They are data of `ir/launch_ir.py`. `launch_plan.py` makes both functions; the other files have a form of kernels each.
"""
