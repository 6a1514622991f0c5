"""The commands of README and docs: taken from fenced blocks, and made small by one table."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = {
    "statistics",
    "studies",
    "benchmarks",
    "benchmarks-float32",
    "benchmarks-avx2",
    "parts-reference",
    "settings",
    "glossary",
    "accelerator",
}
"""Pages that programs write."""

SIZE = "d_model=16 n_layers=1 attention.n_heads=2"
TINY = f"{SIZE} train.steps=4 train.eval_every=2"
FEW = "data.train=300 data.validation=20 data.test=20"
COMMON = " ".join(f"--common {word}" for word in TINY.split())
SAME_STEPS = COMMON.replace("--common train.steps=4 ", "")
SMALL = {
    "partwise train original": f"d_model=16 n_layers=1 encoder_layers=1 train.steps=4 {FEW}",
    "partwise train mingpt n_layers=0": f"{TINY.replace('n_layers=1 ', '')} encoder_layers=1 train.batch_size=2",
    "partwise train calculator": f"{TINY} {FEW}",
    "partwise train from=": "train.steps=4 train.eval_every=2 train.batch_size=2",
    "partwise compare from=": "--common train.steps=4 --common train.eval_every=2 --common train.batch_size=2",
    "partwise train": f"{TINY} train.batch_size=2",
    "partwise compare experiment.yaml": "",
    "partwise compare matched.yaml": "",
    "partwise compare --refs": "",
    "partwise compare mingpt ffn=swiglu --data shakespeare --seeds 5": f"{COMMON} --seeds 2",  # README: part of `make test`
    "partwise compare mingpt positions=rope --data shakespeare --common schedule=wsd": f"{SAME_STEPS} --horizons 2,4",
    "partwise compare": COMMON,
    "partwise calibrate experiment.yaml": "",
    "partwise calibrate mingpt --data shakespeare --vary": f"{TINY} --seeds 3 --failure 100",
    "partwise calibrate": f"{TINY} --seeds 4 --failure 100",
    "partwise plan mingpt": COMMON,
    "partwise study run": "--dry-run",
    "partwise generate": "--max-new-tokens 4",
}
"""Words added to a command that starts with the key; the first that fits counts."""

NOT_RUN = {
    "partwise compare experiment.yaml --seeds 20 --on workers": "it waits for workers; test_work.py has them",
    "partwise compare experiment.yaml --seeds 20 --on ray": "it needs Ray; test_ray.py has it",
    "partwise eval other --tasks": "it needs lm_eval; tests/harness has it",
    "partwise compare from=out train.lr=1e-3 --metric": "it needs lm_eval; test_task_metric.py has it",
    "partwise try": "its exit status is the answer; tests/any_code/test_search.py has it",
    "partwise work sweep": "it belongs to the command above",
    "partwise demo": "`make demo` runs it",
    "partwise verify runs/NAME": "NAME stands for a comparison of the reader's own",
}
"""Commands that cannot run as they are, by their start, and why."""


@dataclass(frozen=True)
class Command:
    """A command as a page has it, and as a test runs it."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words after `partwise`, with those that make the command small."""
        added = next((words for start, words in SMALL.items() if self.text.startswith(start)), "")
        return without_repeats(shlex.split(self.text, comments=True)[1:], shlex.split(added))


def without_repeats(words: list[str], added: list[str]) -> list[str]:
    """The words and the added ones, which replace a setting or an option of the same name: two values are refused."""
    names = {name for name, _ in settings(added)}
    return [word for name, item in settings(words) if name not in names for word in item] + added


def settings(words: list[str]) -> list[tuple[str, list[str]]]:
    """The name of each setting, option or other word, with the words that give it."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if found and found[-1][1][-1].startswith("--") and len(found[-1][1]) == 1 and not word.startswith("--"):
            option = found.pop()[0]
            found.append((word.partition("=")[0] if option == "--common" else option, [option, word]))
        else:
            found.append((word.partition("=")[0], [word]))
    return found


def pages() -> list[Path]:
    """README and the pages that people write."""
    return [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED)]


def commands(page: Path) -> list[Command]:
    """The commands of a page's fenced blocks that call partwise, in order; comments are cut and continued lines joined."""
    found = []
    # every block is matched, whatever its language, or the end of one would pass for the start of the next
    for language, block in re.findall(
        r"^```(.*?)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        if language not in ("", "bash"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("partwise ") and not line.startswith(tuple(NOT_RUN)):
                found.append(Command(page.name, line))
    return found
