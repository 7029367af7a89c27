"""A plan printed as torch: chunks in parallel, a loop over chunks for the states.

It runs on any device, and is what Triton kernels are compared with.
"""
