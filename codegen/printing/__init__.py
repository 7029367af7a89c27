"""Expressions as statements of torch and Triton, and the templates of files.

One printer with dialects; no mathematics is decided here.
"""
