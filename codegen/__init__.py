"""The compiler: one file per pass, from a spec to source text."""
