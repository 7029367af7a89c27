"""The gates: after each pass, both sides of it at random points, and a proof in symbols.

Each form has its own definition here (`run_steps`, `run_form`, `run_plan`), independent of the printers.
"""
