"""A loss over a sharded vocabulary, as in Megatron-LM: four shards in one process, forward and backward.

On four ranks each would hold one shard, and the lists of all shards' results would come from an all_gather. What the
program shows: loss and gradients have the bits of the unsharded loss, whatever the number of shards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import steadysum
from steadysum.compat import torch_npu
from steadysum.ops import vocab_parallel

ROWS, HIDDEN, VOCAB = 64, 128, 32000


class VocabParallelLoss(torch.autograd.Function):
    """Per row its cross-entropy, from shards of the weight."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
        cut = vocab_parallel.split_vocab(VOCAB, len(weights))
        shards = [
            torch_npu.npu_fused_linear_online_max_sum(
                input, weight, target, columns.start, columns.stop, vocab_size=VOCAB
            )
            for weight, columns in zip(weights, cut, strict=True)
        ]
        whole = vocab_parallel.merge_shards(shards, cut)
        losses, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*whole)
        masks = [tensor for shard in shards for tensor in (shard.target_mask, shard.masked_target)]
        ctx.save_for_backward(input, whole.logits_max, whole.sum_exp_logits, *masks, *weights)
        ctx.cut = cut
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        input, logits_max, sum_exp_logits, *others = ctx.saved_tensors
        parts, of_weights = [], []
        for shard, columns in enumerate(ctx.cut):
            target_mask, masked_target = others[2 * shard : 2 * shard + 2]
            part, of_weight = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                upstream,
                input,
                others[2 * len(ctx.cut) + shard],
                target_mask,
                masked_target,
                logits_max=logits_max,
                sum_exp_logits=sum_exp_logits,
                vocab_start_index=columns.start,
                vocab_size=VOCAB,
                grad_dtype=torch.float32,
            )
            parts.append(part)
            of_weights.append(of_weight)
        return vocab_parallel.add_input_gradients(parts, ctx.cut), None, *of_weights


def main() -> None:
    """Compares the loss over 1, 2, 4, 8 and 16 shards with the unsharded one."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN, generator=generator) / HIDDEN**0.5).requires_grad_()
    target = torch.randint(VOCAB, (ROWS,), generator=generator)

    losses = steadysum.linear_cross_entropy(hidden, weight, target, reduction="none")
    expected = torch.autograd.grad(losses.mean(), (hidden, weight))
    print(f"unsharded: loss {losses.mean():.6f}")
    for count in (1, 2, 4, 8, 16):
        cut = vocab_parallel.split_vocab(VOCAB, count)
        shards = [weight.detach()[columns.start : columns.stop].requires_grad_() for columns in cut]
        sharded = VocabParallelLoss.apply(hidden, target, *shards)
        of_hidden, *of_shards = torch.autograd.grad(sharded.mean(), (hidden, *shards))
        found = (sharded, of_hidden, torch.cat(of_shards))
        same = all(torch.equal(*pair) for pair in zip(found, (losses, *expected), strict=True))
        bits = "the same" if same else "OTHER"
        print(f"{count:2} shards:  loss {sharded.mean():.6f}, loss and gradients have {bits} bits")
        if not same and "native" in steadysum.kernels.available():
            raise SystemExit("The bits depend on the number of shards.")


if __name__ == "__main__":
    main()
