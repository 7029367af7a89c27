"""What a plan should take and what it does: a model of time, sequences on several GPUs, compile reports, tuning.

Passes never ask here. They choose by what a plan says of itself. What it costs is counted below them, in
`codegen/recurrence/chunkwise/cost.py`.
"""
