"""Presets of published families equal their `transformers` models, with random weights.

Compared with the casts to float32 in `transformers` replaced (1e-10 in float64), and unmodified (float32 tolerance).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from lazy_imports import lazy_module
from partwise.presets import PRESETS
from recipes import error, perturbed
from transformers_models import in_float64

transformers = lazy_module("transformers")

VOCAB, LENGTH = 31, 70  # at least 64 tokens: fewer may not reveal a wrong rotary layout
Tensors = dict[str, Tensor]


def renamed(tensors: Tensors, *rules: tuple[str, str]) -> Tensors:
    result = {}
    for name, tensor in tensors.items():
        for ours, theirs in rules:
            name = re.sub(ours, theirs, name)
        result[name] = tensor
    return result


ENDS = ((r"^embed\.", "model.embed_tokens."), (r"^residual\.norm\.", "model.norm."), (r"^head\.", "lm_head."))
LAYERS = (
    (r"^blocks\.", "model.layers."),
    (r"\.attention\.out\.", ".self_attn.o_proj."),
    (r"\.attention\.([qkv])\.", r".self_attn.\1_proj."),
    (r"\.attention\.([qk])_norm\.", r".self_attn.\1_norm."),
    (r"\.ffn\.(gate|up|down)\.", r".mlp.\1_proj."),
)
PRE = (
    (r"\.residual\.norms\.attention\.", ".input_layernorm."),
    (r"\.residual\.norms\.ffn\.", ".post_attention_layernorm."),
)
AROUND = (
    (r"\.residual\.norms\.attention\.", ".input_layernorm."),
    (r"\.residual\.post_norms\.attention\.", ".post_attention_layernorm."),
    (r"\.residual\.norms\.ffn\.", ".pre_feedforward_layernorm."),
    (r"\.residual\.post_norms\.ffn\.", ".post_feedforward_layernorm."),
)
AFTER = (
    (r"\.residual\.norms\.attention\.", ".post_attention_layernorm."),
    (r"\.residual\.norms\.ffn\.", ".post_feedforward_layernorm."),
)


def to_nanochat(tensors: Tensors) -> Tensors:
    """nanochat rotates in the opposite direction, which equals ours with the two halves of each head swapped."""
    swapped = {
        name: tensor.unflatten(0, (-1, 2, WIDTH // HEADS // 2)).flip(1).flatten(0, 2)
        if re.search(r"\.attention\.[qk]\.", name)
        else tensor
        for name, tensor in tensors.items()
    }
    return renamed(swapped, *ENDS, *LAYERS, (r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2."))


def to_neox(tensors: Tensors) -> Tensors:
    """GPT-NeoX has one QKV matrix, ordered by head."""
    fused = {}
    for name in [name for name in tensors if ".attention.q." in name]:
        pieces = [tensors[name.replace(".q.", f".{role}.")].unflatten(0, (HEADS, 1, -1)) for role in "qkv"]
        fused[name.replace(".q.", ".query_key_value.")] = torch.cat(pieces, dim=1).flatten(0, 2)
    others = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.attention\.[qkv]\.", name)}
    return renamed(
        others | fused,
        (r"^embed\.", "gpt_neox.embed_in."),
        (r"^residual\.norm\.", "gpt_neox.final_layer_norm."),
        (r"^head\.", "lm_head."),
        (r"^blocks\.", "gpt_neox.layers."),
        *PRE,
        (r"\.attention\.out\.", ".attention.dense."),
        (r"\.ffn\.up\.", ".mlp.dense_h_to_4h."),
        (r"\.ffn\.down\.", ".mlp.dense_4h_to_h."),
    )


def to_gpt2(tensors: Tensors) -> Tensors:
    """GPT-2 has transposed matrices and one QKV matrix, ordered q, k, v."""
    fused = {}
    for name in [name for name in tensors if ".attention.q." in name]:
        fused[name.replace(".q.", ".c_attn.")] = torch.cat(
            [tensors[name.replace(".q.", f".{role}.")] for role in "qkv"]
        )
    others = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.attention\.[qkv]\.", name)}
    found = renamed(
        others | fused,
        (r"^embed\.", "transformer.wte."),
        (r"^positions\.", "transformer.wpe."),
        (r"^residual\.norm\.", "transformer.ln_f."),
        (r"^blocks\.", "transformer.h."),
        (r"\.residual\.norms\.attention\.", ".ln_1."),
        (r"\.residual\.norms\.ffn\.", ".ln_2."),
        (r"\.attention\.c_attn\.", ".attn.c_attn."),
        (r"\.attention\.out\.", ".attn.c_proj."),
        (r"\.ffn\.up\.", ".mlp.c_fc."),
        (r"\.ffn\.down\.", ".mlp.c_proj."),
    )
    return {name: tensor.T if re.search(r"\.c_\w+\.weight", name) else tensor for name, tensor in found.items()}


def to_deepseek(tensors: Tensors) -> Tensors:
    """DeepSeek fuses the latent and rotary key projections, keys and values, and gate and up."""
    fused: Tensors = {}
    for name, tensor in tensors.items():
        prefix = name.rpartition(".attention.")[0]
        if name.endswith("attention.kv_down.weight"):
            name = f"{prefix}.self_attn.kv_a_proj_with_mqa.weight"
            tensor = torch.cat([tensor, tensors[f"{prefix}.attention.k_rope.weight"]])
        elif name.endswith("attention.k.weight"):
            name = f"{prefix}.self_attn.kv_b_proj.weight"
            sides = [tensors[f"{prefix}.attention.{role}.weight"].unflatten(0, (HEADS, -1)) for role in "kv"]
            tensor = torch.cat(sides, dim=1).flatten(0, 1)
        elif name.endswith("ffn.experts.gate.weight"):
            prefix = name.removesuffix(".gate.weight")
            name = f"{prefix}.gate_up_proj"
            tensor = torch.cat([tensor, tensors[f"{prefix}.up.weight"]], dim=1)
        elif re.search(r"attention\.(k_rope|v)\.weight$|experts\.up\.weight$", name):
            continue
        fused[name] = tensor
    return renamed(
        fused,
        *ENDS,
        (r"^blocks\.", "model.layers."),
        *PRE,
        (r"\.attention\.q_down\.", ".self_attn.q_a_proj."),
        (r"\.attention\.q_norm\.", ".self_attn.q_a_layernorm."),
        (
            r"\.attention\.q\.",
            ".self_attn.q_b_proj." if any("q_down" in name for name in tensors) else ".self_attn.q_proj.",
        ),
        (r"\.attention\.kv_norm\.", ".self_attn.kv_a_layernorm."),
        (r"\.attention\.out\.", ".self_attn.o_proj."),
        (r"\.ffn\.router\.balance\.bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.ffn\.router\.", ".mlp.gate."),
        (r"\.ffn\.experts\.down\.weight", ".mlp.experts.down_proj"),
        (r"\.ffn\.experts\.", ".mlp.experts."),
        (r"\.ffn\.shared\.(\w+)\.", r".mlp.shared_experts.\1_proj."),
        (r"\.ffn\.(gate|up|down)\.", r".mlp.\1_proj."),
    )


HEADS, WIDTH, HIDDEN = 4, 32, 44
NAMES = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
NAMES |= {"max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SIZES = f"d_model={WIDTH} n_layers=2 context_length=128"
Case = tuple[str, str, dict[str, Any], Callable[[Tensors], Tensors]]


def grouped(kind: str, n_kv_heads: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, **NAMES, "intermediate_size": HIDDEN, "num_key_value_heads": n_kv_heads, **more}


def llama_like(*rules: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: renamed(tensors, *ENDS, *LAYERS, *rules)


def cases() -> Iterator[Any]:
    for kv in (4, 2, 1):
        words = f"attention.n_heads=4 attention.n_kv_heads={kv}"
        theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
        llama = grouped("Llama", kv, rms_norm_eps=1e-5, tie_word_embeddings=True, **theta)
        yield f"llama3-{kv}", f"llama3 {words} ffn.hidden={HIDDEN}", llama, llama_like(*PRE)
        scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaled |= {"original_max_position_embeddings": 16, "rope_theta": 500000.0}
        long = {**llama, "rope_parameters": scaled}
        rope = (
            "positions=rope_llama3 positions.theta=500000.0 positions.factor=8.0 positions.original_context_length=16"
        )
        yield f"llama3-scaled-{kv}", f"llama3 {words} ffn.hidden={HIDDEN} {rope}", long, llama_like(*PRE)
        theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
        qwen = grouped("Qwen3", kv, head_dim=12, rms_norm_eps=1e-6, tie_word_embeddings=True, **theta)
        yield f"qwen3-{kv}", f"qwen3 {words} attention.head_dim=12 ffn.hidden={HIDDEN}", qwen, llama_like(*PRE)
        gemma = grouped("Gemma2", kv, head_dim=12, query_pre_attn_scalar=12, sliding_window=5, tie_word_embeddings=True)
        window = (
            ("attention={cycle: [{part: multihead, window: 5, softcap: 50.0}, {part: multihead, softcap: 50.0}]} ")
            .replace(" ", "")
            .replace(":", ": ")
            .replace(",", ", ")
        )
        yield (
            f"gemma2-{kv}",
            (f"gemma2 {words} attention.head_dim=12 ffn.hidden={HIDDEN}", window),
            gemma,
            llama_like(*AROUND),
        )
        theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
        olmo = grouped("Olmo2", kv, rms_norm_eps=1e-6, **theta)
        yield f"olmo2-{kv}", f"olmo2 {words} ffn.hidden={HIDDEN}", olmo, llama_like(*AFTER)
        chat = grouped("NanoChat", kv, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
        chat["intermediate_size"] = 4 * WIDTH
        yield f"nanochat-{kv}", f"nanochat {words}", chat, to_nanochat
    neox = {"kind": "GPTNeoX", **NAMES, "intermediate_size": 4 * WIDTH, "use_parallel_residual": True}
    neox["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    yield "gptneox", "gptneox attention.n_heads=4", neox, to_neox
    gpt2 = {"kind": "GPT2", "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 128}
    gpt2 |= {"bos_token_id": None, "eos_token_id": None}
    yield "gpt2", f"gpt2 attention.n_heads=4 vocab_size={VOCAB}", gpt2, to_gpt2
    for rank in (None, 20):
        deep = grouped("DeepseekV3", HEADS, q_lora_rank=rank, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=12)
        deep |= {"qk_nope_head_dim": 10, "first_k_dense_replace": 1, "n_routed_experts": 6, "num_experts_per_tok": 2}
        deep |= {"n_group": 3, "topk_group": 2, "n_shared_experts": 1, "moe_intermediate_size": 14}
        deep |= {"routed_scaling_factor": 2.5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        layers = f"ffn=[{{part: swiglu, hidden: {HIDDEN}}}, {{part: moe, n_experts: 6, top_k: 2, hidden: 14, "
        layers += "n_shared_experts: 1, scoring_func: sigmoid, load_balancing: bias, routed_scaling_factor: 2.5, "
        layers += "n_groups: 3, top_k_groups: 2}]"
        sizes = "attention.n_heads=4 attention.kv_lora_rank=16 attention.rope_head_dim=8 attention.v_head_dim=12 "
        sizes += f"attention.head_dim=10 attention.q_lora_rank={'null' if rank is None else rank}"
        yield f"deepseek-{rank}", (f"deepseek {sizes}", layers), deep, to_deepseek


CASES = {name: case for name, *case in cases()}


def ours(words: Any, dtype: torch.dtype) -> partwise.Transformer:
    line, *overrides_with_spaces = (words,) if isinstance(words, str) else words
    name, *overrides = [*line.split(), *SIZES.split()]
    no_dropout = ["attention.dropout=0", "residual.dropout=0", "embed_dropout=0"] if name == "gpt2" else []
    config = partwise.preset(name, *overrides, *map(str.strip, overrides_with_spaces), *no_dropout, vocab_size=VOCAB)
    model = perturbed(config)
    for module in model.modules():
        if (
            hasattr(module, "bias")
            and isinstance(module.bias, Tensor)
            and not isinstance(module.bias, torch.nn.Parameter)
        ):
            module.bias.copy_(torch.linspace(-0.1, 0.1, len(module.bias)))  # a load-balancing bias as if after training
    return model.to(dtype)


def theirs(case: dict[str, Any], rename: Callable[[Tensors], Tensors], tensors: Tensors, dtype: torch.dtype) -> Any:
    options = dict(case)
    kind = options.pop("kind")
    config = getattr(transformers, f"{kind}Config")(
        **options, attn_implementation="eager", experts_implementation="eager"
    )
    class_name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, class_name)(config).to(dtype).eval()
    missing, unexpected = model.load_state_dict(rename(tensors), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}  # tied
    return model


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str) -> None:
    words, options, rename = CASES[name]
    model = ours(words, torch.float64)
    with in_float64():
        expected = theirs(options, rename, model.state_dict(), torch.float64)(tokens()).logits
    assert error(model(tokens()), expected) <= 1e-10
    cache = model.new_cache(2, LENGTH)  # cached decoding: a prefill of 60 tokens, then token by token
    cached = [model(tokens()[:, :60], cache), *(model(tokens()[:, t : t + 1], cache) for t in range(60, LENGTH))]
    assert error(torch.cat(cached, dim=1), expected) <= 1e-10


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_equals_unmodified_transformers(name: str) -> None:
    words, options, rename = CASES[name]
    model = ours(words, torch.float32)
    expected = theirs(options, rename, model.state_dict(), torch.float32)(tokens()).logits
    assert error(model(tokens()), expected) <= 2e-4


@torch.no_grad()
def test_gpt2_decodes_like_transformers_with_its_cache() -> None:
    words, options, rename = CASES["gpt2"]
    model = ours(words, torch.float64)
    with in_float64():
        other = theirs(options, rename, model.state_dict(), torch.float64)
        first = other(tokens()[:, :50], use_cache=True)
        cache = "cache" if "cache" in first else "past_key_values"  # its name since transformers 5.24, and before
    second = other(tokens()[:, 50:], **{cache: first[cache]}, use_cache=True)
    expected = torch.cat([first.logits, second.logits], dim=1)
    cache = model.new_cache(2, LENGTH)
    cached = [model(tokens()[:, :50], cache), model(tokens()[:, 50:], cache)]
    assert error(torch.cat(cached, dim=1), expected) <= 1e-10


PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "gemma2-2b": 2_614_341_888,
    "olmo2-1b": 1_484_916_736,
    "pythia-70m": 70_426_624,
    "deepseek-v3": 671_026_404_352,
    "nanochat-d20": 560_988_160,
}
"""Parameters of the released checkpoints; tied embeddings are counted once."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    assert partwise.preset(name).parameters() == PUBLISHED[name]


def test_every_published_size_is_tested() -> None:
    sized = {name for name, preset in PRESETS.items() if "vocab_size" in preset.settings}
    assert sized == set(PUBLISHED)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_gpt2_by_formula(name: str) -> None:
    config = partwise.preset(name)
    V, T, D, L = config.vocab_size, config.context_length, config.d_model, config.n_layers
    attention, ffn, norm = 4 * D * D + 4 * D, 8 * D * D + 5 * D, 2 * D
    assert config.parameters() == V * D + T * D + L * (attention + ffn + 2 * norm) + norm
