"""C++ kernels for the operations where they beat torch on a CPU, and their Python bindings; torch computes the same elsewhere."""
