"""Models of `transformers` as references, in float64 throughout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import safetensors.torch as _with_float32  # it must not first be imported while float32 is replaced
import torch
from torch import Tensor

from partwise.formats.huggingface.families import FAMILIES
from partwise.model import ModelConfig

assert _with_float32


@contextmanager
def in_float64() -> Iterator[None]:
    """Replace the casts to float32 in `transformers` by casts to float64: norms, rotary tables, softmax and router."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def known_families() -> list[str]:
    """The families that the installed release of `transformers` has."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return [name for name in FAMILIES if name in CONFIG_MAPPING_NAMES]


def skip_unknown(name: str) -> None:
    """Skip a family that the installed release of `transformers` lacks."""
    if name not in known_families():
        pytest.skip(f"this release of transformers has no {name}")


def load_reference(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model in a folder as `transformers` loads it, in eval mode, and which tensors were missing or left over."""
    import transformers

    eager = {"attn_implementation": "eager"}  # the others of some releases leave out soft-caps
    eager |= {"experts_implementation": "eager"} if is_5_or_newer() else {}
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **eager)
    return model.eval(), info


def is_5_or_newer() -> bool:
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def skip_before_5(config: ModelConfig, name: str, new: bool) -> None:
    """Skip what earlier releases refuse: some models in files, and more of the models that they make."""
    if is_5_or_newer():
        return
    if name == "olmo2" and config.positions.name in ("rope_yarn", "rope_llama3"):
        pytest.skip("releases before 5.0 refuse these positions in OLMo 2")
    if new and name == "opt" and not getattr(config.norm, "affine", True):
        pytest.skip("releases before 5.0 initialize weights that such norms of OPT lack")


def save_new(name: str, folder: Path, sizes: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Any:
    """Save a small model of a family, made by `transformers` from its own defaults, with random weights; returns it."""
    import transformers

    torch.manual_seed(0)
    values = {**SIZES.get(name, LLAMA_SIZES), "vocab_size": 29, **sizes}
    config = transformers.AutoConfig.for_model(name, **values)
    config._attn_implementation = "eager"
    if is_5_or_newer():
        config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, **options)
    return model


LLAMA_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 80,
    "pad_token_id": None,
}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3": LLAMA_SIZES | {"head_dim": 8},
    "gemma2": LLAMA_SIZES | {"head_dim": 8, "sliding_window": 5},
    "mistral": LLAMA_SIZES | {"sliding_window": 5},
    "smollm3": LLAMA_SIZES | {"no_rope_layers": [1, 1]},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 80},
    "gpt_neox": {name: value for name, value in LLAMA_SIZES.items() if name != "num_key_value_heads"},
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "ffn_dim": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 80,
    },
    "mpt": {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 80},
    "deepseek_v3": LLAMA_SIZES
    | {
        "num_key_value_heads": 2,
        "moe_intermediate_size": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 6,
        "q_lora_rank": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "qk_nope_head_dim": 8,
    },
}


def build_reference(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The model of `transformers` for the values of a `config.json`, with these tensors, in eval mode."""
    import transformers

    options = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(values["model_type"], **options)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, values["architectures"][0])(config)
    model = model.to(next(iter(tensors.values())).dtype).eval()
    expected = model.state_dict()
    tensors = dict(tensors)
    if "embed_out.weight" in tensors and "embed_out.weight" not in expected:
        tensors["lm_head.weight"] = tensors.pop("embed_out.weight")  # its name in memory since 5.0
    if any(name.endswith("experts.gate_up_proj") for name in expected):
        fuse_experts(tensors)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight", "embed_out.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def fuse_experts(tensors: dict[str, Tensor]) -> None:
    """Experts as the library holds them in memory since 5.0, from one tensor per expert as in files."""
    for name in [name for name in tensors if ".experts.0.gate_proj." in name]:
        stem = name.partition(".experts.0.")[0] + ".experts."
        count = len({key.split(".experts.")[1].split(".")[0] for key in tensors if key.startswith(stem)})

        def taken(kind: str, stem: str = stem, count: int = count) -> Tensor:
            return torch.stack([tensors.pop(f"{stem}{expert}.{kind}_proj.weight") for expert in range(count)])

        gate, up, down = map(taken, ("gate", "up", "down"))
        tensors[f"{stem}gate_up_proj"], tensors[f"{stem}down_proj"] = torch.cat([gate, up], dim=1), down
