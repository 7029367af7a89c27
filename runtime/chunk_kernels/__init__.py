"""What generated Triton kernels share: functions of theirs, and where chunks lie in tensors.

Renaming or changing one changes what was verified on a GPU of every op that calls it. Launches are in `launch/`, torch in
`torch_form/`.
"""
