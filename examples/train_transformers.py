"""Training a Hugging Face causal language model with its own loss and with ours: the same curve, less memory.

A tiny Llama, randomly initialised, learns page.txt; a token is a pair of ASCII characters, which makes a vocabulary of
16384 without any tokenizer. For each of 3 seeds it trains 200 steps with transformers' loss and 200 steps after
patch_transformers(model). Needs `pip install 'steadysum[real]'`; loads nothing from a network.

    python examples/train_transformers.py [--steps 200] [--seeds 3]

The exit code is 0 if all of this holds, 1 if not: our final loss is the stock loss's within 1e-3, relative; a second
run of ours has the same bits, every step's loss and every weight; ours needs less memory. 2: transformers is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported: local files or an error

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from steadysum.compat import patch_transformers

VOCAB: Final = 128 * 128
LENGTH: Final = 32  # tokens of a sequence
BATCH: Final = 2  # sequences of a training step
LARGE_BATCH: Final = 64  # sequences of the step whose memory is measured: logits of 128 MiB
# Of the optimiser. At 2e-3 training is chaotic: a change of the weights by one rounding grows to per cents of the loss.
RATE: Final = 5e-4
TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class Run:
    """What is kept of a training run."""

    losses: list[float]
    digest: str  # of all weights after the last step
    peak: float  # MiB that training took, above the process before it


def tokens_of(text: str) -> Tensor:
    """The text's tokens: pairs of characters."""
    codes = torch.tensor(list(text.encode("ascii", errors="replace")))
    codes = codes[: len(codes) // 2 * 2].reshape(-1, 2)
    return codes[:, 0] * 128 + codes[:, 1]  # [tokens]


def build(seed: int) -> Any:
    """The model, in training mode."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).train()


def train(seed: int, steps: int, batch: int, patched: bool) -> Run:
    """Train a new model, with the loss that transformers gives it or, patched, with ours."""
    torch.set_num_threads(1)  # the model is small; two runs at a time use two cores better than one run does
    model, tokens = build(seed), tokens_of(Path(__file__).with_name("page.txt").read_text())
    if patched:
        patch_transformers(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    before, losses = memory("VmRSS"), []
    for _ in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (batch, 1), generator=generator)
        sequences = tokens[starts + torch.arange(LENGTH)]  # [batch, LENGTH]
        loss = model(input_ids=sequences, labels=sequences).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.numpy().tobytes())
    return Run(losses, digest.hexdigest(), memory("VmHWM") - before)


def memory(field: str) -> float:
    """MiB of this process: VmRSS, resident now; VmHWM, the most that was ever resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def processes(number: int) -> ProcessPoolExecutor:
    """New processes that run train(); they have what is imported here."""
    return ProcessPoolExecutor(number, mp_context=get_context("fork"))


def peak(patched: bool) -> float:
    """MiB that two steps of a large batch take, in a process that has allocated nothing before."""
    with processes(1) as pool:
        return pool.submit(train, 0, 2, LARGE_BATCH, patched).result().peak


def main() -> int:
    """Train, compare, judge."""
    parser = argparse.ArgumentParser(description="A causal language model trained with the stock loss and with ours.")
    parser.add_argument("--steps", type=int, default=200, help="training steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="initial models, each trained both ways")
    arguments = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        print("This example needs the extra `real`: pip install 'steadysum[real]'", file=sys.stderr)
        return 2
    import transformers.models.llama.modeling_llama  # noqa: F401  once here, and not in each process

    with processes(2) as pool:
        every = range(arguments.seeds)
        stock = [pool.submit(train, seed, arguments.steps, BATCH, False) for seed in every]
        ours = [pool.submit(train, seed, arguments.steps, BATCH, True) for seed in every]
        again = pool.submit(train, 0, arguments.steps, BATCH, True).result()

    console, failures = Console(width=None if sys.stdout.isatty() else 110), []
    table = Table(title=f"Loss after {arguments.steps} steps", title_justify="left")
    for heading in ("seed", "at the start", "stock", "ours", "relative difference"):
        table.add_column(heading, justify="right")
    for seed in every:
        theirs, our = stock[seed].result().losses, ours[seed].result().losses
        difference = abs(our[-1] - theirs[-1]) / theirs[-1]
        table.add_row(str(seed), f"{theirs[0]:.4f}", f"{theirs[-1]:.6f}", f"{our[-1]:.6f}", f"{difference:.1e}")
        if not difference <= TOLERANCE:
            failures.append(f"seed {seed}: our final loss differs from the stock one by {difference:.2g}, relative")
    console.print(table)

    first = ours[0].result()
    same = (again.losses, again.digest) == (first.losses, first.digest)
    console.print(f"Seed 0 once more, with our loss: {'the same' if same else 'other'} bits")
    if not same:
        failures.append("two runs of ours differ")

    shape = f"{LARGE_BATCH * LENGTH} tokens, vocabulary {VOCAB}"
    theirs_peak, our_peak = peak(patched=False), peak(patched=True)
    console.print(f"Peak memory of two steps of {shape}: stock {theirs_peak:.0f} MiB, ours {our_peak:.0f} MiB")
    if not our_peak < theirs_peak:
        failures.append("ours takes no less memory")
    for failure in failures:
        console.print(f"[red]{failure}[/red]")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
