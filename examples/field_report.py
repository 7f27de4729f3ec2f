"""The field report's reproduction loop, on any machine: only its import line differs, and its device calls are gone.

Each of 100 calls gets the same operands. The report's loop compares the mean of each softmax with the first call's. As
a softmax's rows sum to 1, its mean is nearly blind: here every element is compared, too.
"""

import sys

import torch

from steadysum.compat.torch_npu import fused_linear_online_max_sum  # was: from torch_npu import ...


def main() -> int:
    """Run the loop; 1 if anything deviates."""
    torch.manual_seed(0)
    x, weight = torch.randn(1024, 256), torch.randn(256, 512)
    baseline = first = None
    deviating = 0
    for i in range(100):
        result = fused_linear_online_max_sum(x, weight)
        current = result.mean().item()
        if baseline is None:
            baseline, first = current, result
        elif abs(current - baseline) > 1e-3:
            print(f"Iter {i}: diff={abs(current - baseline):.6f}")
            return 1
        deviating += int((result != first).any(dim=1).sum() > 0)
    print(f"The report's loop finds no deviation; calls with any element unlike the first call's: {deviating} of 100.")
    return 1 if deviating else 0


if __name__ == "__main__":
    sys.exit(main())
