"""offgen's Triton kernels, one op per file, and `reference`, their specification in plain torch."""
