"""The first passes, over one step: lower a spec, stabilise exponentials, derive the adjoint.

Each makes a step program (`codegen/ir/step_program.py`) of one.
"""
