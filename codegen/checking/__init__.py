"""Comparing an op's results with its definition: errors of each head, and in which situations an op is called.

Covering arrays of situations, what failing calls have in common, and what is said of each.
"""
