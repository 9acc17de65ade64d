"""`./volta bench kernels`: how fast the kernels are, on a CPU and a GPU; see __main__.py."""
