"""The field report's own reproduction loop, applied to the calls of the repeat probe, to show what it misses.

The field report is a user's, of a fused kernel with wrong bits in 5 to 10 % of its calls. Its loop compares the mean of
each call's softmax with the first call's, and reports a difference above 1e-3. Rows of a softmax sum to 1, so its mean
is 1 / V whatever the logits are; only what a fault adds to or takes from that sum shows, diluted by all other rows.
Never a verdict on a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from steadysum.diagnosis.observe import Outputs, Recording

THRESHOLD = 1e-3  # the report's


@dataclass(frozen=True)
class FieldLoop:
    """What the loop would have said."""

    calls: int
    reported: int  # calls that the loop reports
    deviating: int  # calls whose bits deviate from the usual ones, as the repeat probe counts them
    largest: float  # largest difference of a mean from the first call's, over the kept outputs

    @property
    def says(self) -> str:
        """The loop's verdict, in words, beside the truth."""
        if self.deviating == 0:
            return "reports nothing" if self.reported == 0 else f"reports {self.reported}"
        missed = self.deviating - self.reported
        return f"misses {missed} of {self.deviating}" if missed > 0 else f"reports all {self.deviating}"


def run_field_loop(
    recording: Recording,  # of (max, sum_exp), each [N]
    vocabulary: int,  # V
) -> FieldLoop:
    """Applies the loop to recorded calls.

    With the true logits z and a call's statistics m, s, the softmax exp(z - m) / s has the mean
    mean_i(exp(lse_i - (m_i + log s_i))) / V, so that no softmax needs to be stored; the usual outputs stand for the
    true lse. A call whose output wasn't kept counts as not reported.
    """
    if recording.calls == 0:
        return FieldLoop(calls=0, reported=0, deviating=0, largest=0.0)
    usual = _log_sum(recording.usual_outputs)
    means = {
        seen: float((usual - _log_sum(outputs)).exp().nan_to_num(1.0).mean()) / vocabulary
        for seen, outputs in recording.kept.items()
    }
    first = means[recording.digests[0]]
    moved = {seen: abs(mean - first) for seen, mean in means.items()}
    return FieldLoop(
        calls=recording.calls,
        reported=sum(1 for seen in recording.digests if moved.get(seen, 0.0) > THRESHOLD),
        deviating=recording.deviating(recording.usual),
        largest=max(moved.values()),
    )


def _log_sum(outputs: Outputs) -> Tensor:
    return outputs[0].double() + outputs[1].double().log()
