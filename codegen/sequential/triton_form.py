def sequential_triton_source(c):
    raise NotImplementedError
