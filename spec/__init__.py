"""The catalogue: one file per recurrence, attention or program.

`language/` is how one is written, `published/` the second shelf, `rows/` row maps, `claims/` what documents claim. What becomes
of a spec is in `generated/`.
"""
