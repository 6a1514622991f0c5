"""Write the folders of tests/formats/releases, each a small model saved by a release of `transformers`, with its logits.

    python tests/transformers_folders.py        # in an environment with that release

A family is skipped if a folder of an earlier release has it, so that releases in ascending order give the earliest of each.
"""

import json
from pathlib import Path

import torch

from transformers_models import known_families, save_new

FOLDERS = Path(__file__).parent / "formats" / "releases"
TOKENS, SHOWN = 70, 4


def token_ids() -> torch.Tensor:
    """(1, T) ids below 29: fewer than 64 may not reveal a wrong rotary layout."""
    return (torch.arange(TOKENS)[None] ** 2 + 3) % 29


def write_folders() -> None:
    import transformers

    for name in known_families():
        if any(FOLDERS.glob(f"*/{name}")):
            continue
        folder = FOLDERS / transformers.__version__ / name
        model = save_new(name, folder)
        with torch.no_grad():
            logits = model(token_ids()).logits[0, -SHOWN:]
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "logits.json").write_text(json.dumps(logits.tolist()) + "\n")


if __name__ == "__main__":
    write_folders()
