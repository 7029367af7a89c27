"""Random valid specs, compiled, run, and compared with plain torch loops in float64: see `run.py`."""
