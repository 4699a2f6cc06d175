"""CUDA kernels in Triton, and the plans that choose among them."""
