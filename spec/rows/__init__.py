"""What layers do to a step's values before and after a recurrence, as row maps: one kernel forwards, one backwards.

Their kernels are in `generated/rows`; `runtime/nn/rows.py` calls them. Over time nothing is mixed here.
"""
