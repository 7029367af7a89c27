"""Measurements: ours beside the peers', on a GPU (`gpu.py`) and on a CPU (`torch_form.py`)."""
