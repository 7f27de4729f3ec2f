"""The vendor's contributed parts that the field report names."""

from steadysum.compat.torch_npu.contrib import amp

__all__ = ["amp"]
