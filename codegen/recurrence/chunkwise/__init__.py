"""The form over chunks of steps, and the plan of sweeps that computes it.

Segments, coupled states and both ways to a decay's gradient belong to it.
"""
