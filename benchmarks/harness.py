"""Scoring items for lm_eval, ours against its own `hf` model: `python benchmarks/harness.py [PRESET OPTION=VALUE ...]`.

Both read one exported folder in the same precision and score the same items of TinyShakespeare, in turn: the missing words
of passages, each after its own context, and choices, four continuations of every context. Needs `partwise[eval]` and
transformers.
"""

import random
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from measuring import alternate, benchmark_parser, ratios, write_result

import partwise
from partwise.data import Shakespeare
from partwise.formats.huggingface.writing import write_hf_folder
from partwise.harness.language_model import PartwiseLM
from partwise.tokenizers import CharacterTokenizer

CONTEXT, CHOICES = 200, 4
PRESET = ["llama", "d_model=384", "n_layers=6", "attention.n_heads=6", "attention.n_kv_heads=6", "context_length=256"]


def passages(count: int) -> list[tuple[str, str]]:
    """Contexts and the words that follow them."""
    text = str(Shakespeare().splits()["val"])
    places = [match for match in re.finditer(r"(?<=\S) [A-Za-z]+\b", text) if match.start() > CONTEXT]
    step = max(1, len(places) // count)
    lengths = random.Random(0)
    chosen = places[::step][:count]
    return [
        (text[match.start() - lengths.randint(CONTEXT // 4, CONTEXT) : match.start()], match[0]) for match in chosen
    ]


def requests(kind: str, count: int) -> list[Any]:
    found = passages(count)
    if kind == "choices":
        words = [word for _, word in found]
        contexts = [context for context, _ in found][: count // CHOICES]
        found = [
            (context, words[(CHOICES * i + j) % count]) for i, context in enumerate(contexts) for j in range(CHOICES)
        ]
    return [
        Instance("loglikelihood", {}, arguments, index, metadata=("task", index, 1))
        for index, arguments in enumerate(found)
    ]


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=5)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64, help="of both")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"], help="of both")
    parser.add_argument("model", nargs="*", default=PRESET, help="a preset and overrides")
    options = parser.parse_args()
    tokenizer = CharacterTokenizer("".join(sorted({*"".join(map(str, Shakespeare().splits().values()))})))
    config = partwise.preset(*options.model, f"vocab_size={tokenizer.vocab_size}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_hf_folder(partwise.Transformer(config), tokenizer, folder, dtype=torch.float32)
        ours = PartwiseLM(str(folder), options.batch_size, options.precision)
        theirs = HFLM(
            str(folder), device="cpu", dtype=options.precision, batch_size=options.batch_size, prefix_token_id=0
        )
        for kind in ("passages", "choices"):
            items = requests(kind, options.items)
            scores = [model.loglikelihood(items, disable_tqdm=True) for model in (ours, theirs)]  # and to warm up
            difference = max(abs(a - b) for (a, _), (b, _) in zip(*scores, strict=True))
            calls = {
                name: lambda model=model, items=items: model.loglikelihood(items, disable_tqdm=True)
                for name, model in (("ours", ours), ("hf", theirs))
            }
            seconds = alternate(calls, options.rounds)
            ratio = ratios(seconds["hf"], seconds["ours"])
            rows.append(
                {
                    "items": f"{len(items)} {kind}",
                    "ours, items/s": len(items) / statistics.median(seconds["ours"]),
                    "hf, items/s": len(items) / statistics.median(seconds["hf"]),
                    "times as fast as hf": ratio["ratio"],
                    "lowest": ratio["low"],
                    "highest": ratio["high"],
                    "largest difference of a log-probability": difference,
                }
            )
    result = {"parameters": config.parameters(), "precision": options.precision, "rows": rows}
    write_result(options.json, result)


if __name__ == "__main__":
    main()
