"""SafeNPUModule: SafeModule under the field report's name (R24). Not here: what it does (guard/safe_module.py)."""

from steadysum.guard.safe_module import SafeModule as SafeNPUModule

__all__ = ["SafeNPUModule"]
