"""A small folder as `transformers` writes it, and random damage to its files."""

import json
import random
from pathlib import Path

import partwise
from partwise.formats.huggingface.stored import WEIGHTS
from partwise.formats.huggingface.writing import write_hf_folder
from partwise.tokenizers.bytes import ByteTokenizer
from recipes import perturbed

SIZES = "d_model=16 n_layers=2 attention.n_heads=2 attention.n_kv_heads=1 ffn.hidden=24 context_length=32"


def intact_folder(parent: Path) -> Path:
    """A Llama of random weights in `parent`/intact."""
    folder = parent / "intact"
    write_hf_folder(
        perturbed(partwise.preset("llama3", *SIZES.split(), vocab_size=256)).eval(), ByteTokenizer(), folder
    )
    return folder


def mutate(folder: Path, choices: random.Random) -> None:
    """Change one file: bits, its end, a piece, or a value of the configuration."""
    path = choices.choice([folder / name for name in ("config.json", WEIGHTS, "tokenizer.json")])
    content = bytearray(path.read_bytes())
    kind = choices.randrange(5)
    if kind == 0:
        for _ in range(choices.choice([1, 3, 30])):
            content[choices.randrange(min(len(content), 4000))] ^= 1 << choices.randrange(8)
    elif kind == 1:
        del content[choices.randrange(len(content)) :]
    elif kind == 2:
        start = choices.randrange(len(content))
        content[start : start + choices.randrange(1, 50)] = choices.randbytes(choices.randrange(50))
    elif kind == 3:
        content += choices.randbytes(choices.randrange(1, 100))
    else:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        odd = [None, -1, 0, 1, 2**31, 2**63, 1e308, "x", [], {}, True, False, [1] * 3, {"a": {}}, 0.5, "\x1b[31m"]
        values[choices.choice([*values])] = choices.choice(odd)
        content = bytearray(json.dumps(values).encode())
    path.write_bytes(content)
