"""The read-write form of a step: found by interpreting the step over matrix values, or refused with the term that prevents it.

Corrections one after the other become substeps.
"""
