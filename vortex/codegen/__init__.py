"""The compiler: from a traced program to fused Triton kernels."""
