"""The checks of the exercises accept what is right and explain each mistake that they know."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from partwise.lessons.exercises import CACHE_BYTES, CHECKS
from partwise.lessons.lesson import find_lesson

EXAMPLES = Path(__file__).parents[2] / "examples"
ENTROPY = 0.9183  # of weights 0.7112 and three times 0.0963

RIGHT = {
    1: ["train.steps=2000 1.70", "train.steps=2000 train.lr=2e-3 d_model=96: 1.612 nats"],
    2: ["5 seeds", "6 seeds"],
    3: ["200,300", "between 200 and 300"],
    4: ["b c a", "b, c, a"],
    5: ["0.919", "0,919 nats", "0.9187"],
    6: ["0 3 0.62", "layer 1, head 7: 0.51"],
    7: ["0.01", "0.005", "0.02 nats"],
    8: ["0.002,0.006", "2e-3 and 6e-3"],
    9: ["768000", "768,000 bytes"],
    10: ["size, steps and rate", "all three", "the number of parameters, the steps, the learning rate"],
    11: [
        "positions=rope_ntk positions.factor=4",
        "positions=rope_yarn positions.factor=4.0 positions.original_context_length=128",
        "positions=rope_llama3 positions.factor=4 positions.original_context_length=128",
    ],
    12: [str(EXAMPLES / "your_own_part.py")],
}
WRONG = {
    1: {
        "train.steps=2000": "Add the validation loss",
        "1.5": "0 overrides",
        "a=1 b=2 c=3 d=4 1.5": "4 overrides",
        "data=python 1.2": "another",
        "tokenizer=bpe 1.5": "per character",
        "ngram_lm=kneser_ney 1.5": "by itself",
        "train.steps=2000 2.3 bits": "1.594 nats",
        "train.steps=2000 0.9": "training batch",
        "train.steps=2000 1.83": "not below the 4-gram's 1.719",
        "train.step=2000 1.7": "did you mean 'steps'",
        "d_model=65 1.7": "n_heads",
    },
    2: {
        "3": "Student's t",
        "4": "power is below 80%",
        "12": "other initial positions",
        "13": "for the SD of one run.",
        "inf": "number of seeds",
        "23": "unpaired",
        "100": "Which SD",
        "1": "no SD",
        "many": "number of seeds",
    },
    3: {
        "100,200": "they cross later",
        "300,400": "they cross earlier",
        "300,200": "earlier step first",
        "200,600": "narrower",
        "250,300": "Losses are measured",
        "250": "two steps",
    },
    4: {
        "c b a": "0.399 is not c: three numbers with mean 0 and variance 1 give sqrt(2) / pi",
        "b a c": "0.450 is not a: one draw",
        "a c b": "0.399 is not a",
        "b b b": "one of the numbers",
        "b": "three letters",
    },
    5: {
        f"{ENTROPY / math.log(2):.3f}": "bits",
        f"{ENTROPY / math.log(10):.3f}": "log10",
        f"{ENTROPY / math.log(4):.3f}": "share of log 4",
        f"-{ENTROPY}": "sign",
        "1.386": "log 4",
        "2.506": "perplexity",
        "0.242": "first weight alone",
        "0.676": "without the first",
        "0": "no softmax",
        "nan": "Subtract the largest score",
        "inf": "Subtract the largest score",
        "0.5": "Take exp",
        "0.92": "three digits",
        "1.3": "bits",
        "none": "number of nats",
    },
    6: {
        "0 3 0.4": "not above",
        "0 3 62": "0.62 for 62%",
        "0 3 120": "Scores before the softmax",
        "0 3 1.0": "first token on itself",
        "2 3 0.6": "layers 0 and 1",
        "0 8 0.6": "heads 0 to 7",
        "0.6": "layer, the head",
    },
    7: {
        "0": "above 0",
        "1%": "not a percentage",
        "0.001": "could not be equivalent",
        "0.5": "worth 1000 steps",
        "small": "margin in nats",
    },
    8: {
        "0.004,0.006": "At 0.004, ",
        "0.002,0.004": "stored runs learned",
        "0.006,0.002": "lower rate first",
        "0.001,0.006": "did not run at 0.001",
        "0.004": "two rates",
        "at the high one": "two rates",
    },
    9: {
        str(CACHE_BYTES // 2): "keys AND values",
        str(CACHE_BYTES // 3): "three texts",
        str(CACHE_BYTES // 4): "4 bytes",
        str(CACHE_BYTES * 6): "not the 12 query heads",
        str(CACHE_BYTES // 5): "five layers",
        str(CACHE_BYTES * 8): "bits",
        "768": "kB",
        "750": "KiB",
        "0.768 MB": "A millionth",
        str(CACHE_BYTES * 3): "keys AND values; six times",
        str(CACHE_BYTES * 2): "not 8",
        "17": "Multiply",
        "-3": "number of bytes",
    },
    10: {"size": "Steps and rate changed as well", "size and rate": "Steps changed", "luck": "Answer with those"},
    11: {
        "positions=rope_linear positions.factor=4": "tell neighbors apart",
        "positions.theta=40000": "idea of rope_ntk",
        "positions=alibi": "Three parts",
        "positions=rope_ntk": "by how much",
        "positions=rope_ntk positions.factor=512": "ratio",
        "positions=rope_ntk positions.factor=0.25": "inverse",
        "positions=rope_ntk positions.factor=3": "512 is not 3 times 128",
        "positions=rope_yarn positions.factor=4": "asks for",
        "positions=rope_llama3 positions.factor=4": "asks for",
        "positions=rope_yarn positions.factor=4 positions.original_context_length=512": "length of training, 128",
        "yarn": "yarn",
    },
    12: {
        str(EXAMPLES / "batch_norm.py"): "or the features of one token alone",
        "none.py": "no such file",
        "0.87": "the path of the Python file",
    },
}


@pytest.mark.parametrize("lesson", CHECKS)
def test_right_answers(lesson: int) -> None:
    assert {answer: CHECKS[lesson](answer) for answer in RIGHT[lesson]} == dict.fromkeys(RIGHT[lesson])


@pytest.mark.parametrize("lesson", CHECKS)
def test_mistakes_are_explained(lesson: int) -> None:
    for answer, told in WRONG[lesson].items():
        found = CHECKS[lesson](answer)
        assert found is not None and told in found, f"{answer}: {found}"


@pytest.mark.parametrize(
    "answer", ["", " ", "=", "a=", "1e999", "-", "²", "nan nan", "1,2,3,4", "x" * 1000, "\x00", "9" * 400]
)
def test_any_text_is_answered(answer: str) -> None:
    for check in CHECKS.values():
        assert check(answer)


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        ("return x.roll(1, 0) + self.layer(x)", "Other rows are other texts"),
        ("return self.layer(x) * x.shape[1]", "new tokens alone"),
        ("return x + 0 * self.layer(x).detach()", "Does forward use it?"),
        ("return self.layer(x) + torch.rand_like(x)", "only if self.training"),
        ("return self.layre(x)", "layre"),
    ],
)
def test_a_part_of_the_reader_is_checked(forward: str, told: str, tmp_path: Path) -> None:
    """A file that is wrong is told why; mended, it passes in the same session."""
    path, name = tmp_path / "mine.py", f"exercise_{abs(hash(told))}"
    text = f"""import torch
from partwise import part

@part("{name}", family="ffn")
class Mine(torch.nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        FORWARD
"""
    path.write_text(text.replace("FORWARD", forward))
    found = CHECKS[12](str(path))
    assert found is not None and told in found
    path.write_text(text.replace("FORWARD", "return self.layer(x).relu()"))
    assert CHECKS[12](str(path)) is None


def test_the_part_on_the_page_passes(tmp_path: Path) -> None:
    """In a process of its own: there, nothing has imported the parts of the package yet."""
    [text] = re.findall(r"```python\n(.*?)```", find_lesson(12).sections["An exercise"], re.DOTALL)
    (tmp_path / "my_part.py").write_text(text)
    command = [sys.executable, "-m", "partwise", "lesson", "12", "--check", "my_part.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [("raise SystemExit(3)", "__main__"), ("x = 1", "defines no part"), ("x = (", "SyntaxError")],
)
def test_a_file_without_a_part_is_told_so(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert told in (CHECKS[12](str(path)) or "")


def test_the_answers_are_those_of_the_plain_code() -> None:
    """Bytes of the cache and entropy, by the plain code that the lessons show."""
    from torch import tensor

    from from_scratch.attention_scale import entropy
    from from_scratch.cache import cache_bytes

    assert cache_bytes(3, 200, 5, 2, 16, 4) == CACHE_BYTES
    assert entropy(tensor([2.0, 0, 0, 0]).softmax(0)).item() == pytest.approx(ENTROPY, abs=5e-5)


def test_questions_do_not_contain_the_answer() -> None:
    for lesson in CHECKS.keys() - {6, 10}:  # which show a form, and the words to choose from
        assert not any(answer in find_lesson(lesson).sections["An exercise"] for answer in RIGHT[lesson])


def test_it_imports_no_torch() -> None:
    code = "import sys, partwise.lessons.exercises; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
