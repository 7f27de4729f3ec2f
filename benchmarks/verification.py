"""What verify= costs: statistics verified over statistics as they are, in turn.

The bar is on checksums, at the shapes whose statistics have a bar of their own. Checksums of the weight are kept, as in
inference; what a new version of the weight costs, as in training, is shown beside it. Not here: what is seen for that
price (tools/checksum_campaign.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import steadysum
from benchmarks.bars import (
    DECODING_SHAPES,
    FP32_SHAPES,
    PAIRS_NEAR_A_BAR,
    QUICK_ROUNDS,
    QUICK_SHAPE,
    REPORT_SHAPE,
    SIXTEEN_BIT_SHAPES,
    against,
)
from benchmarks.contenders import STATISTICS, Contender, Work
from benchmarks.results import Measure
from steadysum import MaxSum

CHECKSUM_BAR = 1.02


def _checksum(work: Work) -> MaxSum:
    return steadysum.linear_max_sum(work.input, work.weight, verify="checksum")


def _checksum_of_new_weight(work: Work) -> MaxSum:
    work.weight.mul_(1)  # a new version; part of the time
    return _checksum(work)


def _sampled(work: Work) -> MaxSum:
    return steadysum.linear_max_sum(work.input, work.weight, verify="sampled")


CHECKSUM = Contender("verify='checksum'", "statistics", _checksum)
NEW_WEIGHT = Contender("verify='checksum', new weight", "statistics", _checksum_of_new_weight)
SAMPLED = Contender("verify='sampled'", "statistics", _sampled)


def measure_verification(quick: bool) -> Iterator[Measure]:
    """A measure for each shape and dtype; the bars are on checksums at an LM head's shapes."""
    rounds = QUICK_ROUNDS if quick else None
    shapes = (QUICK_SHAPE,) if quick else FP32_SHAPES
    for shape in shapes:
        yield against(CHECKSUM, STATISTICS, shape, "fp32", CHECKSUM_BAR, rounds or PAIRS_NEAR_A_BAR)
    for shape in (QUICK_SHAPE,) if quick else SIXTEEN_BIT_SHAPES:
        yield against(CHECKSUM, STATISTICS, shape, "bf16", CHECKSUM_BAR, rounds or PAIRS_NEAR_A_BAR)
    yield against(CHECKSUM, STATISTICS, REPORT_SHAPE, "fp32", None, rounds)
    for shape in () if quick else (DECODING_SHAPES[0], DECODING_SHAPES[3], DECODING_SHAPES[7]):
        yield against(CHECKSUM, STATISTICS, shape, "fp32", None, rounds)
    yield against(NEW_WEIGHT, STATISTICS, shapes[0], "fp32", None, rounds)
    yield against(SAMPLED, STATISTICS, shapes[0], "fp32", None, rounds)
