"""Functions of other libraries by their names and arguments, on top of generated ops.

`fla.py` has functions, `fla_layers.py` layers. Models of other libraries as a whole are in `integrations/`.
"""
