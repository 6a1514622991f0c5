"""Folders of several releases of `transformers`: those written by the earliest are kept here, others are written now."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lazy_imports import lazy_module
from partwise.config import ConfigError
from partwise.formats.huggingface.families import FAMILIES
from partwise.formats.huggingface.reading import read_hf_model, stored_dtype
from partwise.formats.huggingface.stored import WEIGHTS
from partwise.formats.huggingface.writing import write_hf_folder
from partwise.model import ModelConfig
from recipes import error, perturbed
from transformers_folders import FOLDERS, SHOWN, token_ids
from transformers_models import is_5_or_newer, load_reference, save_new, skip_unknown

lazy_module("transformers")

SAVED = sorted(FOLDERS.glob("*/*"))
LINEAR, YARN = {"factor": 2.0}, {"factor": 4.0}
LLAMA3 = {"factor": 4.0, "original_max_position_embeddings": 20, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def last_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return read_hf_model(folder)(token_ids())[0, -SHOWN:]


def test_every_family_has_a_folder_of_its_earliest_release() -> None:
    assert {folder.name for folder in SAVED} == {*FAMILIES}
    assert {folder.parent.name for folder in SAVED} == {"4.50.0", "4.51.3", "4.53.0", "5.24.0"}


@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_what_an_early_release_has_saved_is_read(folder: Path) -> None:
    assert error(last_logits(folder), torch.tensor(json.loads((folder / "logits.json").read_text()))) <= 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_installed_release_saves_is_read(name: str, tmp_path: Path) -> None:
    skip_unknown(name)
    for index, options in enumerate(({}, {"max_shard_size": "4KB"})):
        for tied in (False, True):
            folder = tmp_path / f"{index}-{tied}"
            model = save_new(name, folder, {"tie_word_embeddings": tied}, **options)
            assert (folder / WEIGHTS).exists() == (not options)
            with torch.no_grad():
                assert error(last_logits(folder), model(token_ids()).logits[0, -SHOWN:]) <= 1e-5


SCALINGS = [
    {"rope_type": "linear"} | LINEAR,
    {"type": "linear"} | LINEAR,
    {"rope_type": "yarn"} | YARN,  # the original length is the model's
    {"type": "yarn"} | YARN,
    {"type": "yarn", "rope_type": "yarn", "original_max_position_embeddings": 20} | YARN,
    {"rope_type": "yarn", "mscale": 0.7} | YARN,  # without effect
    {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 20} | YARN,
    {"rope_type": "llama3"} | LLAMA3,
    {"type": "llama3"} | LLAMA3,
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, scaling.values())))
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "stablelm"])
def test_scaled_positions_are_read_by_their_old_and_new_names(
    name: str, scaling: dict[str, Any], tmp_path: Path
) -> None:
    save_new(name, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    rope = values.pop("rope_parameters", {})
    values |= {"rope_scaling": scaling, "rope_theta": rope.get("rope_theta", 10000.0)}
    (tmp_path / "config.json").write_text(json.dumps(values))
    theirs, _ = load_reference(tmp_path)
    with torch.no_grad():
        assert error(last_logits(tmp_path), theirs(token_ids()).logits[0, -SHOWN:]) <= 1e-5


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"type": "dynamic", "factor": 2.0}, "rope_scaling: type=dynamic: not supported"),
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_scaling: rope_type=dynamic: not supported"),
        ({"type": "su", "factor": 2.0}, "rope_scaling: type=su: not supported"),
        ({"type": "linear", "rope_type": "yarn"} | YARN, "type=linear: rope_type=yarn is another one"),
        ({"type": "yarn", "scale": 0.7} | YARN, "scale=0.7: this key is not understood"),
        ({"type": "linear"}, "rope_scaling lacks 'factor'"),
    ],
    ids=str,
)
def test_other_scalings_are_refused_by_their_names(scaling: dict[str, Any], said: str, tmp_path: Path) -> None:
    save_new("llama", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"rope_scaling": scaling}))
    with pytest.raises(ConfigError) as raised:
        read_hf_model(tmp_path)
    assert said in str(raised.value)


@pytest.mark.parametrize("part", ["rope", "rope_linear", "rope_yarn", "rope_llama3"])
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "olmo2"])
def test_scaled_positions_are_written_for_releases_before_5(name: str, part: str, tmp_path: Path) -> None:
    options = {"rope": {}, "rope_linear": {"factor": 3.0}}.get(part, {"factor": 4.0, "original_context_length": 20})
    config = ModelConfig.from_dict(tiny(name) | {"positions": {"part": part, "theta": 5000.0, **options}})
    model = perturbed(config).float().eval()
    write_hf_folder(model, None, tmp_path / "out", family_name=name)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    kind = part.removeprefix("rope_")
    if part == "rope":
        assert "rope_scaling" not in values
    elif name == "olmo2" and part == "rope_linear":
        assert values["rope_scaling"] == {"type": "linear", "factor": 3.0}
    else:
        expected = {"rope_type": kind, "factor": options["factor"]}
        assert expected.items() <= values["rope_scaling"].items() <= values["rope_parameters"].items()
    if name == "olmo2" and kind in ("yarn", "llama3") and not is_5_or_newer():
        return  # refused there
    theirs, info = load_reference(tmp_path / "out")
    assert not any(info.values()), info
    with torch.no_grad():
        assert error(last_logits(tmp_path / "out"), theirs(token_ids()).logits[0, -SHOWN:]) <= 1e-5


def tiny(name: str) -> dict[str, Any]:
    """A small configuration of a family with rotary positions."""
    sizes: dict[str, Any] = {"vocab_size": 29, "d_model": 16, "n_layers": 1, "context_length": 80}
    attention: dict[str, Any] = {"part": "multihead", "n_heads": 2}
    if name == "gpt_neox":
        return sizes | {
            "attention": attention | {"bias": True, "out_bias": True},
            "ffn": {"part": "gelu", "hidden": 20, "bias": True},
            "norm": {"part": "layernorm", "bias": True},
            "residual": {"part": "parallel", "shared_norm": False},
            "tie_embeddings": False,
        }
    if name == "olmo2":
        attention |= {"qk_norm": "full"}
        sizes |= {"residual": "reordered"}
    return sizes | {"attention": attention, "ffn": {"part": "swiglu", "hidden": 20}, "norm": "rmsnorm"}


def test_the_head_of_gpt_neox_has_the_name_that_every_release_reads(tmp_path: Path) -> None:
    model = perturbed(ModelConfig.from_dict(tiny("gpt_neox"))).float().eval()
    write_hf_folder(model, None, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / WEIGHTS)
    assert "embed_out.weight" in tensors and "lm_head.weight" not in tensors
    expected = last_logits(tmp_path / "out")
    tensors["lm_head.weight"] = tensors["embed_out.weight"].clone()
    save_file(tensors, tmp_path / "out" / WEIGHTS)
    with pytest.raises(ConfigError, match=r"unexpected tensor lm_head\.weight"):
        read_hf_model(tmp_path / "out")
    del tensors["embed_out.weight"]  # as partwise 0.1.0 wrote it
    save_file(tensors, tmp_path / "out" / WEIGHTS)
    assert torch.equal(last_logits(tmp_path / "out"), expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt"])
def test_tied_weights_have_either_name(name: str, tmp_path: Path) -> None:
    save_new(name, tmp_path, {"tie_word_embeddings": True})
    expected = last_logits(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    family = FAMILIES[name]
    (embeddings,) = [
        key for key in tensors if key.endswith((".embed_tokens.weight", ".wte.weight", ".embed_in.weight"))
    ]
    tensors[f"{family.head}.weight"] = tensors.pop(embeddings)
    save_file(tensors, tmp_path / WEIGHTS)
    assert torch.equal(last_logits(tmp_path), expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt", "mpt"])
def test_a_model_saved_without_its_head(name: str, tmp_path: Path) -> None:
    """It is complete if its embeddings are the head."""
    for tied in (True, False):
        folder = tmp_path / str(tied)
        model = save_new(name, tmp_path / f"whole-{tied}", {"tie_word_embeddings": tied})
        model.base_model.save_pretrained(folder)
        if tied:
            assert torch.equal(last_logits(folder), last_logits(tmp_path / "whole-True"))
        else:
            with pytest.raises(ConfigError, match=rf"lacks \S+: .* save it as {FAMILIES[name].architecture}"):
                read_hf_model(folder)


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_ctx": 80, "n_special": 0, "predict_special_tokens": True, "output_past": True, "_num_labels": 1},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1},
    "qwen2": {"use_mrope": False},
    "opt": {"activation_dropout": 0.0, "prefix": "</s>", "layerdrop": 0.0},
    "gemma2": {"cache_implementation": "hybrid"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_models_without_meaning_are_no_obstacle(name: str, tmp_path: Path) -> None:
    save_new(name, tmp_path)
    expected = last_logits(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | PUBLISHED[name]))
    assert torch.equal(last_logits(tmp_path), expected)


def test_causal_masks_in_the_files_of_pythia_are_no_obstacle(tmp_path: Path) -> None:
    save_new("gpt_neox", tmp_path)
    expected = last_logits(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    for layer in range(2):
        stem = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{stem}.bias"] = torch.ones(1, 1, 80, 80, dtype=torch.bool).tril()
        tensors[f"{stem}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{stem}.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(
        {name: each.half() if each.is_floating_point() else each for name, each in tensors.items()}, tmp_path / WEIGHTS
    )
    assert error(last_logits(tmp_path), expected) <= 1e-2
    assert stored_dtype(tmp_path) == torch.float16
