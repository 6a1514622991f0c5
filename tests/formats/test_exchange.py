"""A trained model goes out, is used in a process without partwise, and comes in again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import partwise
from lazy_imports import lazy_module
from partwise.cli import main
from partwise.config import ConfigError
from partwise.formats.huggingface.stored import read_object
from partwise.formats.loading import load
from partwise.train.config import run_config
from partwise.train.run_folder import RunFolder
from partwise.train.trained_model import open_trained

lazy_module("transformers")

WORDS = "d_model=32 n_layers=2 attention.n_heads=2 attention.n_kv_heads=1 ffn.hidden=48 context_length=224"
TRAINING = "train.steps=60 train.seq_len=64 train.lr=5e-3 train.device=cpu schedule.warmup=5"
PROGRAM = """
import json, sys
sys.modules["partwise"] = None  # an import would raise
import torch, transformers
folder, prompt = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
ids = tokenizer(prompt, return_tensors="pt").input_ids
out = model.generate(ids, max_new_tokens=200, do_sample=False)
with torch.no_grad():
    logits = model(out).logits
print(json.dumps({"ids": out[0].tolist(), "text": tokenizer.decode(out[0]), "logits": logits[0].tolist()}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run and its export."""
    folder = tmp_path_factory.mktemp("a project")
    config = run_config("llama3", *WORDS.split(), *TRAINING.split())
    for _ in RunFolder(folder / "runs" / "tiny", config, command=["partwise", "train", "llama3"]).events():
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["partwise", "export", "tiny", "out", "--to", "hf"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    return folder


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["partwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out + shown.err


@pytest.mark.promise
def test_a_process_without_partwise_writes_the_same_text(project: Path) -> None:
    prompt = "ROMEO:\nBut soft"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(project / "out"), prompt], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    model, tokenizer = load(project / "runs" / "tiny")
    text = partwise.generate(model, tokenizer, [prompt], max_new_tokens=200, temperature=0)[0]
    ids = tokenizer.encode(prompt + text)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None])[0]
    difference = (logits - torch.tensor(theirs["logits"])).abs().max().item()
    assert difference < 1e-4
    best = logits.topk(2).values
    clear = (best[:, 0] - best[:, 1])[len(prompt) - 1 : -1] > 2 * difference
    assert clear.all(), "another seed: the two best logits are too close to compare texts"
    assert theirs["ids"] == ids.tolist() and theirs["text"] == prompt + text


def test_the_card_tells_data_scores_and_commands(project: Path) -> None:
    card = (project / "out" / "README.md").read_text()
    for text in ("A Llama model with", "`shakespeare`", "2-gram reference | 2.4835", "partwise train llama3"):
        assert text in card
    assert "partwise export tiny out --to hf" in card


def test_the_card_states_the_verdicts_of_the_comparison(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [*WORDS.split(), "train.steps=4", "train.batch_size=4"]
    results = partwise.compare(
        "llama3", "norm.eps=1e-3", data="text.txt", common=common, seeds=2, failure=100, name="pair", progress=False
    ).results
    run = str(Path("runs/pair/runs/0-llama3/seed-0"))
    status, said = command(monkeypatch, capsys, "export", run, "out", "--to", "hf")
    assert status == 0, said
    card = Path("out/README.md").read_text()
    assert results.effects[0].sentence and results.effects[0].sentence in card
    assert str(here) not in card, "a path of this machine"
    Path("runs/pair/results.json").write_text("{}")
    status, said = command(monkeypatch, capsys, "export", run, "again", "--to", "hf")
    assert status == 0 and "The verdicts of its comparison could not be read" in Path("again/README.md").read_text(), (
        said
    )


def test_a_folder_stands_where_a_run_may(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    code, said = command(monkeypatch, capsys, "import", "out", "--name", "back")
    assert code == 0 and "runs/back" in said
    texts = set()
    for name in ("tiny", "back", "out"):
        code, said = command(monkeypatch, capsys, "generate", name, "--prompt", "KING", "--max-new-tokens", "20")
        assert code == 0
        texts.add(said)
    assert len(texts) == 1
    losses = set()
    for name in ("back", "out"):
        code, said = command(monkeypatch, capsys, "eval", name)
        losses.add(next(line for line in said.splitlines() if line.startswith("validation")))
    assert len(losses) == 1
    code, said = command(monkeypatch, capsys, "import", "out", "--name", "back")
    assert code == 2 and "runs/back exists: choose another --name" in said
    code, said = command(monkeypatch, capsys, "export", "tiny", "out")
    assert code == 2 and "out exists and is not empty" in said
    before = {path: path.read_bytes() for path in (project / "out").iterdir()}
    code, said = command(monkeypatch, capsys, "inspect", "out", "positions")
    assert {path: path.read_bytes() for path in (project / "out").iterdir()} == before


def test_the_configuration_of_a_folder_is_read_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    read = list[Path]()

    def count(path: Path) -> dict[str, object]:
        read.append(path)
        return read_object(path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("partwise.formats.huggingface.reading.read_object", count)
    assert open_trained(str(project / "out")).config.model.d_model == 32
    assert read == [project / "out" / "config.json"]
    assert command(monkeypatch, capsys, "export", str(project / "out"), "again", "--no-check")[0] == 0
    assert read == [project / "out" / "config.json"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_import_then_export_restores_every_byte(
    project: Path,
    tmp_path: Path,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "source"
    code, _ = command(
        monkeypatch, capsys, "export", str(project / "out"), str(source), "--dtype", str(dtype)[6:], "--no-check"
    )
    assert code == 0 and {tensor.dtype for tensor in load_file(source / "model.safetensors").values()} == {dtype}
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, capsys, "import", "source", "--name", "back")[0] == 0
    assert command(monkeypatch, capsys, "export", "back", "again", "--no-check")[0] == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (source / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_weights_beyond_a_precision_are_refused(project: Path, tmp_path: Path) -> None:
    from partwise.formats.huggingface.writing import write_hf_folder

    model, tokenizer = load(project / "out")
    with torch.no_grad():
        model.embed.weight[0, 0] = 1e30
    with pytest.raises(ConfigError, match="not finite in float16: choose --dtype float32"):
        write_hf_folder(model, tokenizer, tmp_path / "half", dtype=torch.float16)
    assert not list(tmp_path.iterdir())


def test_other_logits_in_transformers_are_reported(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partwise.cli.commands.export import compare_logits

    model, _ = load(project / "out")
    other = tmp_path / "other"
    partwise_out = project / "out"
    other.mkdir()
    for path in partwise_out.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 1.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"computes logits that differ by up to .* nothing was written"):
        compare_logits(model, other, torch.float32)


def test_the_preset_fast_is_a_model_that_other_tools_load(tmp_path: Path) -> None:
    """The preset `fast`, which a newcomer trains first, at its full size: all parts are those of Qwen 3."""
    from transformers import AutoModelForCausalLM

    from partwise.formats.huggingface.writing import write_hf_folder
    from recipes import perturbed

    config = run_config("fast")
    model = perturbed(config.model).float().eval()
    tokenizer = config.prepare().tokenizer
    write_hf_folder(model, tokenizer, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.from_numpy(tokenizer.encode("ROMEO:\nBut soft, what light"))[None]
    with torch.no_grad():
        assert (model(ids) - theirs(ids).logits).abs().max() < 1e-4
