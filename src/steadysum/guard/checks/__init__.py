"""Checks of one result of one call, from the cheapest to those that compute it again; docs/checks.md compares them."""

from steadysum.guard.checks.checksum import Checksum as Checksum
from steadysum.guard.checks.custom import Custom as Custom
from steadysum.guard.checks.defaults import default_checks as default_checks
from steadysum.guard.checks.embedding_gather import EmbeddingGather as EmbeddingGather
from steadysum.guard.checks.finite import Finite as Finite
from steadysum.guard.checks.max_sum_invariants import MaxSumInvariants as MaxSumInvariants
from steadysum.guard.checks.protocol import Check as Check
from steadysum.guard.checks.protocol import Finding as Finding
from steadysum.guard.checks.protocol import Made as Made
from steadysum.guard.checks.redundant import Redundant as Redundant
from steadysum.guard.checks.reference import Reference as Reference
from steadysum.guard.checks.rows_sum_to_one import RowsSumToOne as RowsSumToOne
from steadysum.guard.checks.sampled_rows import SampledRows as SampledRows
