"""What a plan should take and what it does: a model of time, sequences on several GPUs, compile reports, tuning.

Passes never ask here; what they choose by is counted in `codegen/recurrence/cost.py`.
"""
