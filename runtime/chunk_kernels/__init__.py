"""What generated Triton kernels share: functions of theirs, and where chunks lie in tensors."""
