"""A launch whose records all have right stamps has left right outputs, whatever became of the call.

Not only calls that return: of a call that raises, too, what memory holds is right if every record of it is whole.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from steadysum.cores.outcomes import Scenario
from steadysum.errors import AccuracyError, StaleRead, SyncTimeout

from .campaigns import CORES, VOCAB, allowed, armed_device, problems, rearmed
from .operators import ORDERS, call, same_bits

OUTPUTS = ("out_max", "out_sum", "out_predicted", "mask", "masked_target")


@pytest.mark.parametrize("policy", [1, 2, 3])
@settings(max_examples=60)
@drawn(data=st.data(), seed=st.integers(0, 10_000), core=st.integers(0, CORES - 1), order=st.sampled_from(ORDERS))
def test_outputs_whose_records_all_have_right_stamps_are_right(
    policy: int, data: st.DataObject, seed: int, core: int, order: str
) -> None:
    scenarios: list[Scenario] = data.draw(st.lists(st.sampled_from(allowed(policy)), min_size=1, max_size=2))
    # Own work that is wrong in two ways at once may agree with itself: the table arms one such fault a call.
    arms = [
        rearmed(scenario, core, data.draw(st.sampled_from([0.2, 1.0])), (2, 2), data.draw(st.sampled_from([1, None])))
        if scenario.name not in ("flip, product", "flip, statistics", "scale")
        else rearmed(scenario, core, 1.0, (2, 2), 1)
        for scenario in dict.fromkeys(scenarios)
    ]
    on = armed_device(policy, arms, order, seed)
    call(on, problems(VOCAB)[0][0])
    operands, expected = problems(VOCAB)[1]
    with suppress(StaleRead, SyncTimeout, AccuracyError):
        assert same_bits(call(on, operands), expected)
    if on.check_integrity() == []:  # every record of the last launch is there, and whole
        left = tuple(torch.from_numpy(on._memory.arrays[name].copy()) for name in OUTPUTS)
        assert same_bits(left, expected)


@pytest.mark.parametrize("policy", [1, 2, 3])
def test_a_record_of_a_call_that_was_right_is_whole(policy: int) -> None:
    on = armed_device(policy, [], "clock", 0)
    for number in range(4):
        operands, expected = problems(VOCAB)[number % 2]
        assert same_bits(call(on, operands), expected)
        assert on.check_integrity() == []
