"""The vendor's utilities that the field report names."""

from steadysum.compat.torch_npu.utils import accuracy_tools

__all__ = ["accuracy_tools"]
