"""The verifier: decides claims from the forward recurrence alone, finds counterexamples, repairs and conditions.

It shares nothing with the compiler but exact numbers, `exact/`. Claims in LaTeX are read by `paper/`.
"""
