"""The code of kernel `triton`: one concern per file; a jit function lies beside the Python function that launches it.

Not here: the protocol of kernels (kernels/triton.py), the only module that imports this folder, and only once triton
is there. Every file but grid.py imports triton.
"""
