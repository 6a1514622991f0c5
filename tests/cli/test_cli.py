"""The commands end to end: invalid input prints one line, exits with status 2 and writes nothing."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from command_line import run
from partwise import quoting
from partwise.config import REGISTRY

TINY = [
    "d_model=16",
    "n_layers=2",
    "attention.n_heads=2",
    "context_length=16",
    "train.batch_size=4",
    "train.steps=6",
    "train.eval_every=3",
    "train.threads=1",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("abc def " * 12)
    (tmp_path / "binary.txt").write_bytes(b"text\x00text" * 50)
    (tmp_path / "latin.txt").write_bytes("déjà vu ".encode("latin-1") * 50)
    (tmp_path / "no_value.csv").write_text("seed,arm,loss\n0,a,1\n")
    (tmp_path / "word.csv").write_text("seed,arm,value\n0,a,1\n1,a,low\n0,b,1\n1,b,2\n")
    (tmp_path / "one.csv").write_text("seed,arm,value\n0,a,1\n0,b,2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "mingtp"], ["mingtp", "did you mean 'mingpt'"]),
        (["train", "mingpt", "ffn=swigloo"], ["ffn=swigloo", "did you mean 'swiglu'"]),
        (["train", "mingpt", "ffn.expnsion=3"], ["ffn.expnsion", "did you mean 'expansion'"]),
        (["train", "mingpt", "--ffn.expnsion=3"], ["ffn.expnsion", "did you mean 'expansion'"]),
        (["train", "mingpt", "ffnn=relu"], ["ffnn", "did you mean 'ffn'"]),
        (["train", "mingpt", "train.lr=fast"], ["train.lr=fast", "number"]),
        (["train", "mingpt", "train.lr=-1"], ["train.lr=-1", "greater than 0"]),
        (["train", "mingpt", "d_model=1.5"], ["d_model=1.5", "integer"]),
        (["train", "mingpt", "attention.n_heads=7"], ["attention.n_heads=7", "d_model=96", "divisor"]),
        (["train", "mingpt", "attention.n_kv_heads=3"], ["attention.n_kv_heads=3", "divisor"]),
        (["train", "mingpt", "train.seq_len=129"], ["train.seq_len=129", "context_length=128"]),
        (["train", "mingpt", "train.grad_accumulation=3"], ["train.grad_accumulation=3", "divisor"]),
        (["train", "mingpt", "ffn"], ["'ffn'", "KEY=VALUE"]),
        (["train", "mingpt", "train.device=cuda"], ["train.device=cuda", "auto"]),
        (["train", "mingpt", "--data", "short.txt"], ["train.seq_len=128", "lower train.seq_len"]),
        (["train", "mingpt", "--data", "empty.txt"], ["empty.txt", "empty"]),
        (["train", "mingpt", "--data", "binary.txt"], ["binary.txt"]),
        (["train", "mingpt", "--data", "latin.txt"], ["latin.txt", "UTF-8"]),
        (["train", "mingpt", "--data", "missing.txt"], ["missing.txt"]),
        (["train", "mingpt", "--data", "shakespear"], ["shakespear", "did you mean 'shakespeare'"]),
        (["train", "mingpt", "--name", "a/b"], ["a/b", "separator"]),
        (["train", "mingpt", "--name", "a..b"], ["a..b"]),
        (["train", "mingpt", "--name", "../up"], ["../up"]),
        (["train", "mingpt", "--import", "no_such_module"], ["no_such_module"]),
        (["train", "mingpt", "--import", "no_such_file.py"], ["no_such_file.py"]),
        (["train", "recipe.yaml"], ["recipe.yaml"]),
        (["eval", "nothing"], ["nothing"]),
        (["generate", "nothing"], ["nothing"]),
        (["parts", "fnn"], ["fnn", "did you mean 'ffn'"]),
        (["show", "mingpt", "norm=layernrom"], ["layernrom", "did you mean 'layernorm'"]),
        (["compare", "mingpt"], ["nothing to compare"]),
        (
            ["compare", "mingpt", "ffn=swiglu", "ffn=gelu"],
            ["ffn is given twice, as swiglu and gelu", "--arm ffn=gelu adds"],
        ),
        (["train", "mingpt", "train.lr=1", "--train.lr=2"], ["train.lr is given twice, as 1 and 2: keep one"]),
        (["show", "mingpt", "--data", "python", "data=arithmetic"], ["data is given twice, as python and arithmetic"]),
        (["verdict", "word.csv", "--margin", "1", "--margin", "2"], ["--margin is given twice: keep one"]),
        (["compare", "mingpt", "ffn=swiglu", "--seeds", "0"], ["--seeds 0"]),
        (["compare", "mingpt", "ffn=swiglu", "--name", "a/b"], ["a/b"]),
        (["compare", "mingpt", "ffn=swiglu", "--seeds", "few"], ["--seeds few"]),
        (["verdict", "missing.csv"], ["--margin is missing", "--margin 0.01"]),
        (["verdict", "missing.csv", "--margin", "0.01"], ["missing.csv"]),
        (["verdict", "no_value.csv", "--margin", "0.01"], ["no_value.csv", "value"]),
        (["verdict", "word.csv", "--margin", "0.01"], ["word.csv line 3", "low"]),
        (["verdict", "one.csv", "--margin", "0.01"], ["one.csv", "only one seed"]),
        (["verdict", "one.csv", "--margin", "0.01", "--columns", "arms=x"], ["--columns 'arms=x'", "arm=group"]),
        (["study", "run", "unknown"], ["unknown"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_invalid_input_prints_one_line_and_exits_with_status_2(
    words: list[str], parts: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words]
    if words[0] == "train" and not any(word == "--data" for word in words):
        words += ["--data", "text.txt"]
    before = sorted(here.rglob("*"))
    assert run(monkeypatch, *words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1, shown.err
    for part in parts:
        assert part in shown.err
    assert sorted(here.rglob("*")) == before, "nothing may be written"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "mingpt", "--data", "f.jsonl"],
        ["train", "f.yaml"],
        ["show", "f.yaml"],
        ["show", "zero.yaml"],
        ["compare", "f.yaml", "ffn=swiglu"],
        ["compare", "f.yaml", "--seeds", "2"],
        ["verdict", "f.csv", "--margin", "0.01"],
        ["verdict", "f.jsonl", "--margin", "0.01"],
        ["verdict", "f.parquet", "--margin", "0.01"],
        ["verdict", "zero.csv", "--margin", "0.01"],
        ["verdict", "events", "--margin", "0.01"],
    ],
    ids=" ".join,
)
def test_a_pipe_or_a_device_is_refused_at_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events").mkdir()
    for name in ("f.jsonl", "f.yaml", "f.csv", "f.parquet", "events/events.out.tfevents.1"):
        os.mkfifo(name)
    for name in ("zero.yaml", "zero.csv"):
        Path(name).symlink_to("/dev/zero")
    assert run(monkeypatch, *words) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "not a regular file" in shown, shown


def test_train_resume_eval_and_generate(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "mingpt", "ffn=swiglu", *TINY, "--data", "text.txt", "--name", "first"]
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "step 6: validation loss" in shown
    assert "reference" in shown
    assert "sample" in shown
    card = json.loads((here / "runs/first/run.json").read_text())
    assert card["config"]["ffn"]["part"] == "swiglu"
    assert {"device", "precision", "threads", "kernels", "compile", "deterministic", "kernel_build"} == card[
        "runtime"
    ].keys()
    assert {"block", "attention", "ffn"} == {choice["kind"] for choice in card["plan"]}
    assert {"torch", "python", "partwise"} <= card["machine"].keys()

    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "resuming after step 6" in shown
    offered = shlex.split(shown.splitlines()[-1].partition(": ")[2])
    assert run(monkeypatch, *offered[1:]) == 0, "the command that the last line offers"
    assert "report: runs/first/report.html" in capsys.readouterr().out
    assert run(monkeypatch, *words, "train.lr=1e-2") == 2
    assert "train.lr was 0.0003, now 0.01" in capsys.readouterr().err
    assert run(monkeypatch, *words, "train.lr=1e-2", "--fresh") == 0
    capsys.readouterr()

    assert run(monkeypatch, "eval", "first", "--json", "scores.json") == 0
    scores = json.loads((here / "scores.json").read_text())
    lines = [json.loads(line) for line in (here / "runs/first/metrics.jsonl").read_text().splitlines()]
    final = [line for line in lines if line["kind"] == "evaluation"][-1]
    assert scores["validation"] == pytest.approx(final["validation"], rel=1e-6)
    capsys.readouterr()
    assert run(monkeypatch, "eval", "first", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == scores and "the validation loss is" in printed.err
    assert run(monkeypatch, "eval", "first", "scores.json") == 2
    assert "eval first scores.json: a file needs --json" in capsys.readouterr().err
    assert run(monkeypatch, "eval", "first", "--json", "nowhere/scores.json") == 2
    assert "nowhere/scores.json: No such file" in capsys.readouterr().err
    assert [n for n, _ in scores["references"]["ngrams"]] == [1, 2, 3, 4, 5, 7]
    capsys.readouterr()

    prompts = ["--prompt", "the ", "--prompt", "fox"]
    assert run(monkeypatch, "generate", "first", *prompts, "--max-new-tokens", "8", "--seed", "3") == 0
    both = capsys.readouterr().out
    assert run(monkeypatch, "generate", "first", *prompts, "--max-new-tokens", "8", "--seed", "3") == 0
    assert capsys.readouterr().out == both
    assert run(monkeypatch, "generate", "first", "--prompt", "the ", "--max-new-tokens", "8", "--seed", "3") == 0
    alone = capsys.readouterr().out
    assert alone.strip() in both
    assert run(monkeypatch, "generate", "first", "--prompt", "Ω") == 2
    error = capsys.readouterr().err
    assert "tokenizer=bytes" in error
    assert run(monkeypatch, "generate", "first", "--temperature", "-1") == 2
    assert "temperature=-1" in capsys.readouterr().err


def test_the_preset_is_optional(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [*TINY, "ngram_embeddings=hashed", "ngram_embeddings.table_size=50", "--data", "text.txt"]
    assert run(monkeypatch, "train", "ffn=relu", *small, "--name", "changed") == 0
    card = json.loads((here / "runs/changed/run.json").read_text())
    assert (card["config"]["ffn"]["part"], card["config"]["optimizer"]["part"]) == ("relu", "muon")
    assert card["config"]["ngram_embeddings"]["table_size"] == 50
    assert run(monkeypatch, "generate", "changed", "--prompt", "the ", "--max-new-tokens", "4", "--backend", "cpp") == 2
    assert run(monkeypatch, "train", "fasst", *small) == 2


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "mingpt", *TINY, "train.save_every=3", "--data", "text.txt", "--name", "first"]
    assert run(monkeypatch, *words) == 0
    older, newer = sorted((here / "runs/first/checkpoints").glob("step-*"))
    weights = newer / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    capsys.readouterr()
    assert run(monkeypatch, "generate", "first", "--prompt", "the", "--max-new-tokens", "4") == 0
    shown = capsys.readouterr()
    assert newer.name in shown.err
    assert older.name in shown.err
    (older / "model.safetensors").write_bytes(b"")
    assert run(monkeypatch, "generate", "first", "--prompt", "the", "--max-new-tokens", "4") == 2
    assert "no readable checkpoint" in capsys.readouterr().err


def test_arithmetic_training_and_evaluation(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["data.train=300", "data.validation=20", "data.test=40"]
    tiny = [word for word in TINY if not word.startswith("context_length")]
    assert (
        run(
            monkeypatch, "train", "mingpt", *tiny, "context_length=40", *sizes, "--data", "arithmetic", "--name", "sums"
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "5 test problems" in shown
    assert run(monkeypatch, "eval", "sums", "--max-problems", "10") == 0
    shown = capsys.readouterr().out
    for word in (
        "greedy answers to 10 problems",
        "sampled answers",
        "char accuracy with $",
        "exact match",
        "reference",
        "right digits of the greedy answers, by place",
    ):
        assert word in shown
    assert run(monkeypatch, "eval", "sums", "--max-problems", "10", "--json") == 0
    greedy = json.loads(capsys.readouterr().out)["accuracy"]["greedy"]
    assert all(0 <= greedy[key]["by_place"]["1"]["proportion"] <= 1 for key in greedy if key != "all")


def test_parts_and_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "parts", "ffn") == 0
    shown = capsys.readouterr().out
    for word in ("swiglu", "arXiv:2002.05202", "expansion=2.667", "bilinear"):
        assert word in shown
    assert run(monkeypatch, "show", "toy", "ffn=swiglu") == 0
    shown = capsys.readouterr().out
    assert "ffn: gelu -> swiglu" in shown
    assert "ffn.approximate: none, dropped with ffn=gelu" in shown
    assert "ffn.hidden_dropout: 0.1 -> 0" in shown
    assert run(monkeypatch, "show", "mingpt", "ffn=swiglu") == 0
    shown = capsys.readouterr().out
    assert "913,601 parameters at vocab_size=65" in shown
    title, weights = "settings of mingpt ffn=swiglu", re.findall(r"^(\S+) +(\d+) x (\d+)$", shown, re.MULTILINE)
    assert title in shown.splitlines() and ("blocks.*.ffn.up", "256", "96") in weights
    # the matrices of 8 layers, the vectors of 17 norms, and 8 + 1 biases
    sizes = {name: int(rows) * int(columns) for name, rows, columns in weights}
    matrices = sum(size * (8 if name.startswith("blocks.") else 1) for name, size in sizes.items())
    assert matrices + 17 * 2 * 96 + 8 * 96 + 65 == 913_601


def test_custom_parts(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my_parts.py").write_text(
        "from torch.nn import functional as F\n"
        "from partwise.config import part\n"
        "from partwise.parts.feed_forward.dense import Activation, Ungated\n\n"
        "@part('mine')\n"
        "class Mine(Ungated):\n"
        "    '''down(max(up(x), 0)^2).'''\n"
        "    def activation(self):\n"
        "        return Activation('mine', lambda u: F.relu(u).square())\n"
    )
    own = ["--import", "my_parts.py"]
    common = [word for option in TINY for word in ("--common", option)]
    words = ["compare", "mingpt", "ffn=mine", "--data", "text.txt", "--seeds", "2", "--name", "own", *common]
    assert run(monkeypatch, *words, *own) == 0
    assert "ffn=mine" in capsys.readouterr().out
    folder = next((here / "runs/own/runs").glob("1-*")) / "seed-0"
    capsys.readouterr()
    # a checkpoint imports no code by itself
    monkeypatch.delitem(REGISTRY["ffn"], "mine")
    words = ["generate", str(folder), "--prompt", "the", "--max-new-tokens", "4"]
    assert run(monkeypatch, *words) == 2
    refused = capsys.readouterr().err
    assert "ffn=mine" in refused and "--import" in refused
    assert run(monkeypatch, *words, *own) == 0


def test_show_knows_the_vocabulary_of_synthetic_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, size in ((["calculator"], 21), (["calculator-direct"], 19), (["mingpt", "data=arithmetic"], 19)):
        assert run(monkeypatch, "show", *words) == 0
        assert f"parameters at vocab_size={size}" in capsys.readouterr().out
    assert run(monkeypatch, "show", "calculator", "vocab_size=30") == 0
    assert "parameters at vocab_size=30" in capsys.readouterr().out


def test_the_demo_names_three_commands_that_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from partwise.cli.commands.demo import DEMO

    monkeypatch.setitem(DEMO, "seeds", 1)
    (here / "play.txt").write_text("ROMEO: she speaks.\n" * 100)
    monkeypatch.setitem(DEMO, "data", "play.txt")
    monkeypatch.setitem(DEMO, "common", ["d_model=8", "n_layers=1", "attention.n_heads=2", "context_length=16"])
    assert run(monkeypatch, "demo", "--steps", "2", "--name", "tried") == 0
    lines = capfd.readouterr().out.split("Try next:\n")[1].splitlines()
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "partwise"
        if words[1] == "generate":
            assert run(monkeypatch, *words[1:], "--max-new-tokens", "4") == 0


@pytest.mark.parametrize(
    ("called", "on_path", "named"),
    [
        (".venv/bin/partwise", False, True),
        ("/a folder/bin/partwise", False, True),
        (".venv/bin/partwise", True, False),
        ("/a/partwise/__main__.py", False, False),
    ],
)
def test_the_demo_names_the_command_as_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, on_path: bool, named: bool
) -> None:
    from partwise.cli.commands.demo import program

    if on_path:
        (tmp_path / ("partwise.exe" if sys.platform == "win32" else "partwise")).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [called, "demo"])
    assert program() == (quoting.program(str(Path(called))) if named else "partwise")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [([], 0, "partwise compare mingpt ffn=swiglu"), (["--version"], 0, "partwise 0."), (["study"], 2, "Usage")],
)
def test_the_first_words_help(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    assert run(monkeypatch, *words) == status
    shown = capfd.readouterr()
    assert said in shown.out + shown.err and "error" not in shown.err


@pytest.mark.parametrize("words", [["train", "mingpt"], ["compare", "mingpt", "norm=rmsnorm", "--seeds", "2"]])
def test_a_folder_that_cannot_be_written_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A file in the place of a folder; modes do not stop root. First `runs`, then the cache."""
    (here / "runs").write_text("")
    small = [word for option in TINY for word in (["--common", option] if words[0] == "compare" else [option])]
    assert run(monkeypatch, *words, "--data", "text.txt", *small) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"error: cannot write {Path('runs/mingpt')}")
    assert "permissions" in error
    (here / "runs").unlink()
    monkeypatch.setenv("PARTWISE_CACHE", str(here / "text.txt" / "cache"))
    assert run(monkeypatch, *words, "--data", "text.txt", *small) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "set PARTWISE_CACHE" in error
