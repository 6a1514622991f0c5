"""Random configurations of each family equal the models of `transformers`, in both directions; others are refused."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from kernel_inputs import all_equal, threads
from lazy_imports import lazy_module
from partwise.config import ConfigError
from partwise.formats.huggingface import copying
from partwise.formats.huggingface.families import FAMILIES, choose_family, read_config
from partwise.formats.huggingface.function import describe, differences
from partwise.formats.huggingface.reading import read_hf_config, read_hf_model
from partwise.formats.huggingface.writing import NO_SPECIAL_TOKENS, hf_tensors, write_hf_folder
from partwise.model import ModelConfig
from recipes import error, perturbed
from transformers_models import build_reference, in_float64, load_reference, skip_before_5, skip_unknown

transformers = lazy_module("transformers")

VOCAB, LENGTH = 29, 70  # at least 64 tokens: fewer may not reveal a wrong rotary layout
SIZES = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "context_length": 80}
GATED = ["swiglu", "reglu", "glu", "bilinear", {"part": "geglu", "approximate": "tanh"}, "geglu"]
UNGATED = ["relu", "relu2", "gelu", {"part": "gelu", "approximate": "tanh"}, "swish", {"part": "swish", "beta": 1.702}]
HEADS = [(4, 4, None), (4, 2, None), (4, 1, None), (4, 2, 12), (2, 2, 6)]
ROPES: list[Any] = [
    {"part": "rope", "theta": 5000.0},
    {"part": "rope_linear", "factor": 3.0},
    {"part": "rope_yarn", "factor": 4.0, "original_context_length": 20},
    {"part": "rope_yarn", "factor": 4.0, "original_context_length": 20, "mscale": 1.3, "truncate": False},
    {"part": "rope_llama3", "factor": 8.0, "original_context_length": 16},
]


def some(choices: random.Random, name: str) -> dict[str, Any]:
    """A random configuration within the reach of a family."""
    n_heads, n_kv_heads, head_dim = choices.choice(HEADS)
    attention: dict[str, Any] = {"part": "multihead", "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    eps, flag = choices.choice([1e-6, 1e-5, 1e-3]), lambda: choices.random() < 0.5
    rms, layer_norm = {"part": "rmsnorm", "eps": eps}, {"part": "layernorm", "eps": eps}
    ffn = choices.choice(UNGATED if name in ("arcee", "nanochat", "gpt2", "gpt_neox", "opt") else GATED)
    ffn = ({"part": ffn} if isinstance(ffn, str) else ffn) | {"hidden": choices.choice([24, 44])}
    rope: Any = dict(choices.choice(ROPES))
    settings: dict[str, Any] = SIZES | {"positions": rope, "norm": rms, "tie_embeddings": flag(), "residual": "pre"}
    wide = {"head_dim": head_dim}
    if name == "llama":
        attention |= wide | {"bias": flag(), "out_bias": flag()}
        ffn |= {"bias": flag()}
        rms |= {"unit_offset": flag()}
        rope |= {"layout": choices.choice(["half", "interleaved"])}
    elif name == "mistral":
        attention |= wide | {"window": choices.choice([5, 20])}
    elif name == "qwen2":
        attention |= {"bias": True, "window": choices.choice([None, 7])}
    elif name == "qwen3":
        attention |= wide | {"qk_norm": "head", "qk_norm_eps": eps, "bias": flag(), "window": choices.choice([None, 7])}
    elif name == "smollm3":
        settings["positions"] = "none"
        attention |= wide | {"bias": flag(), "out_bias": flag(), "window": choices.choice([None, 7])}
    elif name == "arcee":
        attention |= wide | {"bias": flag()}
        ffn |= {"bias": flag()}
    elif name == "olmo2":
        attention |= {"qk_norm": "full", "qk_norm_eps": eps, "bias": flag()}
        settings["residual"] = "reordered"
    elif name == "gemma2":
        attention |= wide | {"softcap": choices.choice([None, 5.0]), "scale": choices.choice([None, 4**-0.5])}
        settings |= {"residual": "sandwich", "scale_embeddings": True, "logit_softcap": choices.choice([None, 3.0])}
        rms |= {"unit_offset": flag()}
    elif name == "nanochat":
        attention |= {"qk_norm": "head", "qk_norm_eps": eps, "qk_norm_affine": False, "bias": flag()}
        rope |= {"mscale": 1.0} if rope["part"] == "rope_yarn" else {}
        rms |= {"affine": False}
        settings |= {"embed_norm": True, "logit_softcap": choices.choice([None, 3.0])}
    elif name in ("gpt2", "opt"):
        attention = {"part": "multihead", "n_heads": n_heads, "bias": flag(), "out_bias": flag()}
        ffn |= {"bias": flag()}
        layer_norm |= {"bias": flag(), "affine": flag()} | ({"eps": 1e-5} if name == "opt" else {})
        settings |= {"positions": choices.choice(["learned", "sinusoidal", "none"]), "norm": layer_norm}
        settings["residual"] = choices.choice(["post"] if name == "opt" else ["pre"])
    elif name == "mpt":
        attention = {"part": "multihead", "n_heads": choices.choice([1, 2, 4, 8]), "scale": choices.choice([None, 0.3])}
        settings |= {"positions": "alibi", "norm": layer_norm | {"bias": False}}
        ffn = {"part": "gelu", "expansion": 4.0}
    elif name in ("gpt_neox", "stablelm"):
        attention["n_heads"] = 4
        attention["n_kv_heads"] = choices.choice([4, 2])
        n_heads = 4
        rope |= {"partial_rotary_factor": choices.choice([0.5, 1.0])}
        settings |= {"norm": layer_norm | {"bias": flag()}}
        attention |= {"bias": flag()}
        shared = {"part": "parallel", "shared_norm": name == "stablelm"}
        settings["residual"] = choices.choice(["pre", shared])
        if name == "gpt_neox":
            attention |= {"n_kv_heads": n_heads, "out_bias": flag()}
            ffn |= {"bias": flag()}
    elif name == "deepseek_v3":
        sizes = {"kv_lora_rank": 16, "rope_head_dim": 8, "v_head_dim": 12, "head_dim": 10}
        attention = {"part": "mla", "n_heads": 4, "q_lora_rank": choices.choice([None, 20]), **sizes}
        settings["positions"] = {"part": "rope", "layout": choices.choice(["half", "interleaved"])}
        ffn = {"part": "swiglu", "hidden": 44}
        moe = {"part": "moe", "n_experts": 6, "top_k": 2, "hidden": 14, "n_shared_experts": choices.choice([1, 2])}
        moe |= {"scoring_func": "sigmoid", "load_balancing": choices.choice(["bias", "aux_loss"]), "n_groups": 3}
        moe |= {"top_k_groups": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": flag()}
        n_dense = choices.choice([0, 1, 3])
        return settings | {"attention": attention, "ffn": [ffn] * n_dense + [moe] * (3 - n_dense)}
    some_windows = attention.get("window") and name != "mistral" and flag()
    layers = [attention, attention | {"window": None}, attention] if some_windows else attention
    return settings | {"attention": layers, "ffn": ffn}


def cases(n_seeds: int) -> list[Any]:
    """Some seeds of each family; `make test-interop` runs all."""
    return [
        pytest.param(name, seed, marks=[pytest.mark.long] if seed >= n_seeds else [])
        for name in FAMILIES
        for seed in range(8)
    ]


def model_of(name: str, seed: int, dtype: torch.dtype) -> partwise.Transformer:
    model = perturbed(ModelConfig.from_dict(some(random.Random(f"{name} {seed}"), name)))
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("balance.bias"):
            buffer.copy_(torch.linspace(-0.1, 0.1, len(buffer)))  # as if after training
    return model.to(dtype).eval()


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.mark.promise
@torch.no_grad()
@pytest.mark.parametrize(("name", "seed"), cases(2))
def test_equals_transformers(name: str, seed: int) -> None:
    skip_unknown(name)
    model = model_of(name, seed, torch.float64)
    skip_before_5(model.config, name, new=True)
    family, values, tensors = hf_tensors(model, name)
    with in_float64():
        reference = build_reference(
            values | NO_SPECIAL_TOKENS | {"model_type": family.model_type, "architectures": [family.architecture]},
            tensors,
        )
        expected = reference(tokens()).logits
    assert error(model(tokens()), expected) <= 1e-10


@torch.no_grad()
@pytest.mark.parametrize(("name", "seed"), cases(1))
def test_files_are_read_by_both(name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unknown(name)
    model = model_of(name, seed, torch.float32)
    skip_before_5(model.config, name, new=False)
    write_hf_folder(model, None, tmp_path / "out", family_name=name)
    theirs, info = load_reference(tmp_path / "out")
    assert not any(info.values()), info
    assert error(model(tokens()), theirs(tokens()).logits) <= 3e-4
    theirs.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path / "out", tmp_path / "saved"):
        ours = read_hf_model(folder)
        assert error(ours(tokens()), model(tokens())) <= 3e-5
        family, _ = read_hf_config(folder)
        assert family.model_type == name
    for n_threads, n_bytes in ((1, 500), (3, 500)):  # several blocks a tensor, the last of fewer rows
        monkeypatch.setattr(copying, "BLOCK_BYTES", n_bytes)
        with threads(n_threads):
            again = read_hf_model(folder)
            assert torch.get_num_threads() == n_threads
        assert all_equal(list(again.state_dict().values()), list(ours.state_dict().values()))
    write_hf_folder(ours, None, tmp_path / "again", family_name=name)
    first, second = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("out", "again"))
    assert first == second


@pytest.mark.parametrize(("name", "seed"), cases(4))
def test_reading_restores_what_was_written(name: str, seed: int) -> None:
    config = ModelConfig.from_dict(some(random.Random(f"{name} {seed}"), name))
    family, wide = choose_family(config, name)
    values = family.write(describe(wide)) | {"model_type": name, "architectures": [family.architecture]}
    other, restored = read_config(values, "config.json")
    assert other is family and not list(differences(describe(wide), describe(restored)))


@pytest.mark.parametrize(
    ("name", "override", "said"),
    [
        ("llama3", "attention.sinks=true", "attention.sinks=true (Llama: false)"),
        ("llama3", "norm=scalenorm", "norm=scalenorm"),
        ("llama3", "ffn=elu", "ffn=elu"),
        ("llama3", "positions=rope_ntk positions.factor=2", "positions=rope_ntk"),
        ("qwen3", "attention.gate=head", "attention.gate=head (Qwen 3: none)"),
        ("gpt2", "head_bias=true", "head_bias=true (GPT-2: false)"),
        ("olmo2", "residual=hyper_connections", "residual=hyper_connections"),
        ("gemma2", "norm=layernorm", "norm=layernorm (Gemma 2: rmsnorm)"),
        ("nanochat", "ngram_embeddings=hashed", "ngram_embeddings=hashed"),
    ],
)
def test_what_no_family_has_is_named(name: str, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match="no family of `transformers` can compute this model") as raised:
        choose_family(partwise.preset(name, *override.split()))
    assert said in str(raised.value)


PUBLISHED = ["gpt2", "gpt2-xl", "llama3-1b", "llama3-8b", "qwen3-0.6b", "gemma2-2b", "olmo2-1b", "pythia-70m"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_as_many_parameters(name: str) -> None:
    config = partwise.preset(name)
    family, wide = choose_family(config)
    values = family.write(describe(wide)) | NO_SPECIAL_TOKENS
    restored = read_config(values | {"model_type": family.model_type}, "config.json")[1]
    with torch.device("meta"):
        reference = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(family.model_type, **values)
        )
    assert config.parameters() == restored.parameters() == reference.num_parameters()


def test_the_page_lists_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*FAMILIES}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_needs_the_weights_and_one_tensor(tmp_path: Path) -> None:
    sizes = {"small": ["d_model=32", "n_layers=1"], "large": ["d_model=512", "n_layers=6"]}
    peaks = {}
    for name, size in sizes.items():
        config = partwise.preset("llama", *size, "attention.n_heads=8", "vocab_size=512")
        write_hf_folder(partwise.Transformer(config), None, tmp_path / name, dtype=torch.float32)
        program = """
import sys
from pathlib import Path
from partwise.formats.huggingface.reading import read_hf_model
read_hf_model(Path(sys.argv[1]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
        peaks[name] = int(subprocess.check_output([sys.executable, "-c", program, tmp_path / name]))
    weights = config.parameters() * 4 / 1024  # KiB
    assert weights > 60_000
    assert peaks["large"] - peaks["small"] < 1.25 * weights
