"""By how much the sum of a softmax's row may differ from 1, when nothing but rounding has happened to it.

Not here: bounds of the logits and of single probabilities (bounds.py), and who compares (compat/, guard/).
"""

from __future__ import annotations

import math

from steadysum.tiling import TILE, segments

__all__ = ["rounding_bound"]


def rounding_bound(vocab: int) -> float:
    """By how many units of rounding (2^-24 in fp32) the sum of a softmax's row may differ from 1, to first order.

    With d = z - max, a probability is exp(d) / s: one unit for the quotient, 4 for exp (at most 2 ulp), and 2 |d| for
    the rounding of d, and of d log2(e) where exp is made of exp2, which exp magnifies. Averaged over the row, the sum
    of p |d| is the entropy - log s, at most log V. The sum s has the same errors of its terms, and once more for each
    time that a partial is measured from another maximum; and one unit for each addition or product on the longest way
    from a term to the sum: a tile's additions in any order, then two per merge, of tiles and of segments.

    >>> rounding_bound(512) * 2**-24 < 1e-4
    True
    """
    cut = segments(vocab)
    tiles = math.ceil(max(len(segment) for segment in cut) / TILE)
    merges = tiles - 1 + math.ceil(math.log2(len(cut)))
    per_exp = 4 + 2 * math.log(vocab)
    return 1 + per_exp + (min(vocab, TILE) + 2 * merges) + per_exp * (1 + merges)
