"""What the gradient filter saves on the real head and what it costs: times with and without it, errors of gradients.

The errors are against the exact gradients, without a filter. There are no random operands here: all their probabilities
are much the same, so that a filter has nothing to leave out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from benchmarks.contenders import Work, missing
from benchmarks.results import Measure
from benchmarks.training.accuracy import AGAINST, errors, exact
from benchmarks.training.contenders import OURS, THREE_PRODUCTS, bare_products, bound, filtered
from benchmarks.training.problems import Problem
from steadysum.timing import measure_in_turn

ERROR_BAR = 1e-3  # of the Frobenius norm of either gradient
EPS = (2.5e-7, 5e-7, 1e-6, 2e-6)  # the last is about the largest that keeps the bar on this head
QUICK_EPS = EPS[2:3]
QUICK_ROUNDS = 3


def measure_gradient_filter(quick: bool) -> Iterator[Measure]:
    """The times of all, in turn in the same rounds, then the errors."""
    problem = Problem("fp32", None)
    if (reason := problem.missing() or missing(OURS)) is not None:
        yield Measure(problem.title, OURS.name, AGAINST, None, ERROR_BAR, reason)
        return
    work = problem.load()
    filters = {eps: filtered(eps) for eps in (QUICK_EPS if quick else EPS)}
    calls = {contender.name: bound(contender, work) for contender in (OURS, *filters.values())}
    timings = measure_in_turn(
        {THREE_PRODUCTS: bare_products(work, forward=1), **calls}, QUICK_ROUNDS if quick else None
    )
    for name in calls:
        for reference in (THREE_PRODUCTS, OURS.name):
            if name != reference:
                seconds = {each: timings.median(each) for each in (name, reference)}
                note = " against ".join(f"{value * 1e3:.3g} ms" for value in seconds.values())
                ratio = timings.ratio(name, reference)
                yield Measure(problem.title, name, reference, ratio, None, note, seconds, timings.rounds)
    expected = exact(work)
    for eps, contender in filters.items():
        found = errors(contender, work, expected)
        left_out = f"{_share_below(eps, work):.1%} of the probabilities are below"
        for name, error in (("input gradient", found.input), ("weight gradient", found.weight)):
            yield Measure(problem.title, f"{contender.name}: {name}", AGAINST, error, ERROR_BAR, left_out, unit="")


def _share_below(eps: float, work: Work) -> float:
    with torch.no_grad():
        return float((F.linear(work.input, work.weight).softmax(dim=1) < eps).float().mean())
