"""Kernels: code that computes tiles. What is here, what would run and why, and how to name one."""

from steadysum.kernels.problem import Problem
from steadysum.kernels.promise import Promise
from steadysum.kernels.registry import Choice, Kernel, available, explain, get, names, use

__all__ = ["Choice", "Kernel", "Problem", "Promise", "available", "explain", "get", "names", "use"]
