"""Generated ops inside other people's libraries: each is a package of its own, which loads that library only when it is used.

What needs no other library is in `runtime/`: layers in `nn/`, fla's names in `compat/`.
"""
