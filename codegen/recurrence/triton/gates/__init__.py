"""What must hold of printed kernels: run over exact numbers, they leave in memory what their plan says.

A file for each family of kernels; `section.py` chooses. Schedules of warps with roles have theirs in `warp_roles/gate.py`.
"""
