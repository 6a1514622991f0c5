"""Folders that are damaged or made to harm: one line, nothing executed, memory bounded; and what reading costs."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from formats_hostile import intact_folder, mutate
from partwise.cli import main
from partwise.config import ConfigError
from partwise.formats.huggingface import copying
from partwise.formats.huggingface.stored import INDEX, WEIGHTS
from partwise.formats.loading import load
from partwise.machine import peak_memory


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return intact_folder(tmp_path_factory.mktemp("hf"))


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def edit_tensors(folder: Path, **changes: Any) -> None:
    tensors = load_file(folder / WEIGHTS) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not ...}, folder / WEIGHTS)


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": ...}, "model_type=null is not supported"),
        ({"model_type": "lama"}, "did you mean 'llama'?"),
        ({"architectures": ["LlamaForQuestionAnswering"]}, "only LlamaForCausalLM is supported"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map names code in the folder, which is never run"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type=longrope: not supported"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention={"),
        ({"attention_chunk_size": 8}, "attention_chunk_size=8: this key is not understood"),
        ({"hidden_act": "mish"}, "hidden_act=mish: not supported"),
        ({"hidden_size": "16"}, "hidden_size=16: expected an integer"),
        ({"hidden_size": 2**39}, "does not describe a model that can be built"),
        ({"hidden_size": 2**70}, "expected an integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: at most 1000 layers are supported"),
        ({"num_hidden_layers": 40}, "lacks the tensor model.layers.2."),
        (
            {"vocab_size": 2**23},
            "model.embed_tokens.weight has shape [256, 16], but config.json describes [8388608, 16]",
        ),
        ({"intermediate_size": ...}, "lacks 'intermediate_size'"),
        ({"rms_norm_eps": 0}, "does not describe a model that can be built"),
        ({"num_attention_heads": 0}, "does not describe a model that can be built"),
        ({"num_key_value_heads": 3}, "does not describe a model that can be built"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=true"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_that_is_not_understood(folder: Path, changes: dict[str, Any], said: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ConfigError) as raised:
        load(folder)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({Q: ...}, f"lacks the tensor {Q} (1 missing)"),
        ({Q: torch.zeros(4, 4)}, f"{Q} has shape [4, 4], but config.json describes [16, 16]"),
        ({Q: torch.full((16, 16), float("nan"))}, f"{Q} contains NaN or infinity"),
        ({Q: torch.full((16, 16), float("-inf"))}, f"{Q} contains NaN or infinity"),
        ({Q: torch.zeros(16, 16, dtype=torch.int8)}, f"{Q} has type I8: only floating point is supported"),
        (
            {"model.layers.2.mlp.up_proj.weight": torch.zeros(1)},
            "unexpected tensor model.layers.2.mlp.up_proj.weight (1 unexpected): a Llama model",
        ),
        ({"lm_head.weight": torch.zeros(256, 16)}, "tie_word_embeddings=true, but lm_head.weight differs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_tensor_is_accounted_for(folder: Path, changes: dict[str, Any], said: str) -> None:
    edit_tensors(folder, **changes)
    with pytest.raises(ConfigError) as raised:
        load(folder)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m"])
def test_control_characters_are_not_printed(folder: Path, name: str) -> None:
    """They would start a second line, or move the terminal's cursor."""

    def refusal() -> str:
        with pytest.raises(ConfigError) as raised:
            load(folder)
        return str(raised.value)

    edit_tensors(folder, **{name: torch.zeros(1)})
    assert refusal().isprintable()
    edit_tensors(folder, **{name: ...})
    edit_config(folder, **{name: 1})
    assert refusal().isprintable()
    edit_config(folder, **{name: ..., "model_type": name})
    assert refusal().isprintable()
    edit_config(folder, model_type="llama")
    weight_map = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {name: "a.safetensors"}}))
    assert refusal().isprintable()


def test_a_name_that_transformers_takes_from_gguf_files_is_metadata(folder: Path) -> None:
    edit_config(folder, _model_name_or_path="Smollm2 135M 8k Lc100K Mix1 Ep2")
    load(folder)


def test_a_copy_of_tied_embeddings_is_compared_to_the_last_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BLOCK_BYTES", 600)  # 9 of 256 rows a block
    head = load_file(folder / WEIGHTS)["model.embed_tokens.weight"].clone()
    edit_tensors(folder, **{"lm_head.weight": head})
    load(folder)
    head[-1, -1] += 1
    edit_tensors(folder, **{"lm_head.weight": head})
    with pytest.raises(ConfigError, match=r"lm_head\.weight differs from the embeddings"):
        load(folder)


def test_large_finite_weights_are_no_damage(folder: Path) -> None:
    edit_tensors(folder, **{Q: torch.full((16, 16), 3e38)})  # their sum overflows
    load(folder)


def test_unused_tensors_and_a_missing_prefix_are_known(folder: Path, intact: Path) -> None:
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(intact / WEIGHTS).items()}
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / WEIGHTS)
    for ours, theirs in zip(load(folder)[0].parameters(), load(intact)[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


def shard(folder: Path, names: tuple[str, str] = ("a.safetensors", "b.safetensors")) -> dict[str, str]:
    """Divide the weights between two files; returns the weight map."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    keys = sorted(tensors)
    weight_map = {}
    for file, part in zip(names, (keys[:5], keys[5:]), strict=True):
        save_file({key: tensors[key] for key in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    return weight_map


def test_shards_are_one_model(folder: Path, intact: Path) -> None:
    shard(folder)
    for ours, theirs in zip(load(folder)[0].parameters(), load(intact)[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", "", 7, None])
def test_an_index_names_files_of_the_folder_only(folder: Path, name: Any) -> None:
    weight_map = shard(folder)
    weight_map[Q] = name
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match="expected a file in the folder"):
        load(folder)


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    shard(folder)
    first, second = load_file(folder / "a.safetensors"), load_file(folder / "b.safetensors")
    save_file(second | dict([next(iter(first.items()))]), folder / "b.safetensors")
    with pytest.raises(ConfigError, match="is also in another file"):
        load(folder)


def test_an_index_that_promises_too_much(folder: Path) -> None:
    weight_map = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {"more": "a.safetensors"}}))
    with pytest.raises(ConfigError, match="lacks more"):
        load(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model.bin may contain code and is not read"):
        load(folder)


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer.json"):
        load(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 10) + b"[" * 10,
        struct.pack("<Q", 2**20) + b"{" + b'"a":' * 1000,
        struct.pack("<Q", 76)
        + b'{"x":{"dtype":"F32","shape":[99999999,999999],"data_offsets":[0,999999999]}}'.ljust(76),
    ],
)
def test_a_header_that_lies(folder: Path, header: bytes) -> None:
    (folder / WEIGHTS).write_bytes(header)
    with pytest.raises(ConfigError, match=r"damaged|no tensors"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"model_type": NaN}', b"1e999"])
def test_a_config_that_is_no_json_object(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load(folder)


def test_mutated_folders_load_or_are_refused(intact: Path, tmp_path: Path) -> None:
    choices = random.Random(7)
    before = peak_memory()
    refused = 0
    for index in range(200):
        folder = Path(shutil.copytree(intact, tmp_path / "mutated", dirs_exist_ok=True))
        mutate(folder, choices)
        try:
            model, _ = load(folder)
            assert all(parameter.isfinite().all() for parameter in model.parameters()), index
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error), (index, error)
    assert 60 < refused < 200
    assert peak_memory() - before < 300_000 * 1024


def test_two_mutated_folders_are_one_line_of_the_command(intact: Path, tmp_path: Path) -> None:
    """As a user meets them: in a process of their own, with status 2, and without a run."""
    choices, refused = random.Random(11), 0
    while refused < 2:
        folder = Path(shutil.copytree(intact, tmp_path / "mutated folder", dirs_exist_ok=True))
        mutate(folder, choices)
        try:
            load(folder)
            continue
        except ConfigError as error:
            expected = " ".join(str(error).split())
        refused += 1
        command = [sys.executable, "-P", "-m", "partwise", "import", "mutated folder", "--name", "theirs"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "1000"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "runs").exists(), (expected, done)
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), (expected, done.stderr)
        assert all(character.isprintable() for character in done.stderr.strip()), done.stderr


def test_the_command_line_says_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(folder, auto_map={"AutoModel": "code.Model"})
    (folder / "code.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(folder.parent)
    for words in (["import", "model"], ["generate", "model"], ["eval", "model"], ["export", "model", "out"]):
        monkeypatch.setattr("sys.argv", ["partwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        error = capsys.readouterr().err
        assert ended.value.code == 2 and error.count("\n") == 1 and "auto_map" in error, (words, error)
    assert not Path("runs").exists() and not Path("out").exists()
