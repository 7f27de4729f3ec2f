"""Comparison of a device's results with the CPU's (field report, R7). Not here: how (steadysum.guard.comparison)."""

from steadysum.guard.comparison import AccuracyComparison, compare_accuracy

__all__ = ["AccuracyComparison", "compare_accuracy"]
