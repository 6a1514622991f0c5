"""Current decoder families, each in published sizes and in one that trains on a laptop.

A family is one function of its sizes, so that its small and published models cannot diverge.
"""

from typing import Any

from partwise.presets.preset import Preset

LAPTOP: dict[str, Any] = {
    "train": {"lr": 1e-3, "batch_size": 16, "seq_len": 128, "steps": 2000, "grad_clip": 1.0},
    "schedule": {"part": "cosine", "warmup": 100},
}
PUBLISHED: dict[str, Any] = {
    "train": {"lr": 3e-4, "batch_size": 8, "seq_len": 1024, "steps": 2000, "grad_clip": 1.0},
    "schedule": {"part": "cosine", "warmup": 200},
}


def llama3(**sizes: Any) -> dict[str, Any]:
    """Grattafiori et al. 2024, arXiv:2407.21783."""
    return {
        "positions": {"part": "rope", "theta": 500000.0},
        "attention": {"part": "multihead"},
        "ffn": {"part": "swiglu"},
        "norm": {"part": "rmsnorm", "eps": 1e-5},
        "residual": "pre",
        "init": "normal",
        "tie_embeddings": True,
    } | sizes


def qwen3(**sizes: Any) -> dict[str, Any]:
    """Yang et al. 2025, arXiv:2505.09388: queries and keys are normalized per head."""
    return {
        "positions": {"part": "rope", "theta": 1000000.0},
        "norm": {"part": "rmsnorm", "eps": 1e-6},
        "residual": "pre",
        "init": "normal",
        "tie_embeddings": True,
    } | sizes


def gemma2(n_heads: int, n_kv_heads: int, head_dim: int, window: int, **sizes: Any) -> dict[str, Any]:
    """Gemma Team 2024, arXiv:2408.00118: sliding windows in every other layer, soft-caps, norms before and after branches."""
    attention = {
        "part": "multihead",
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "softcap": 50.0,
    }
    return {
        "positions": {"part": "rope", "theta": 10000.0},
        "attention": {"cycle": [{**attention, "window": window}, attention]},
        "norm": {"part": "rmsnorm", "eps": 1e-6, "unit_offset": True},
        "residual": "sandwich",
        "init": "normal",
        "tie_embeddings": True,
        "scale_embeddings": True,
        "logit_softcap": 30.0,
    } | sizes


def olmo2(**sizes: Any) -> dict[str, Any]:
    """OLMo Team 2024, arXiv:2501.00656: norms on branch outputs, and on queries and keys over all heads."""
    return {
        "positions": {"part": "rope", "theta": 500000.0},
        "norm": {"part": "rmsnorm", "eps": 1e-6},
        "residual": "reordered",
        "init": "normal",
    } | sizes


def gptneox(n_heads: int, **sizes: Any) -> dict[str, Any]:
    """Black et al. 2022, arXiv:2204.06745; Pythia, arXiv:2304.01373: parallel branches, RoPE on a quarter of each head."""
    return {
        "positions": {"part": "rope", "theta": 10000.0, "partial_rotary_factor": 0.25},
        "attention": {"part": "multihead", "n_heads": n_heads, "bias": True, "out_bias": True},
        "ffn": {"part": "gelu", "expansion": 4.0, "bias": True},
        "norm": "layernorm",
        "residual": {"part": "parallel", "shared_norm": False},
        "init": "gpt2",
    } | sizes


def deepseek(
    n_layers: int, dense: int, hidden: int, attention: dict[str, Any], experts: dict[str, Any], **sizes: Any
) -> dict[str, Any]:
    """DeepSeek-AI 2024, arXiv:2412.19437 (V3): MLA, and MoE with bias load balancing after dense layers."""
    moe = {"part": "moe", "scoring_func": "sigmoid", "load_balancing": "bias", "n_shared_experts": 1} | experts
    return {
        "n_layers": n_layers,
        "positions": {"part": "rope", "theta": 10000.0, "layout": "interleaved"},
        "attention": {"part": "mla"} | attention,
        "ffn": [{"part": "swiglu", "hidden": hidden}] * dense + [moe] * (n_layers - dense),
        "norm": {"part": "rmsnorm", "eps": 1e-6},
        "residual": "pre",
        "init": "normal",
    } | sizes


def nanochat(n_heads: int, **sizes: Any) -> dict[str, Any]:
    """Karpathy 2025, github.com/karpathy/nanochat: squared ReLU, norms without weights, Muon."""
    return {
        "positions": {"part": "rope", "theta": 10000.0},
        "attention": {"part": "multihead", "n_heads": n_heads, "qk_norm": "head", "qk_norm_affine": False},
        "ffn": {"part": "relu2", "expansion": 4.0},
        "norm": {"part": "rmsnorm", "eps": 1e-6, "affine": False},
        "residual": "pre",
        "init": "normal",
        "embed_norm": True,
        "logit_softcap": 15.0,
        "optimizer": "muon",
    } | sizes


def grouped_query(n_heads: int, n_kv_heads: int, head_dim: int | None = None, **options: Any) -> dict[str, Any]:
    return {"part": "multihead", "n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim} | options


SMALL: dict[str, Any] = {"d_model": 128, "n_layers": 4, "context_length": 256} | LAPTOP

DECODERS: dict[str, Preset] = {
    "llama3": Preset(
        "Llama 3, laptop size: RMSNorm, SwiGLU, RoPE, grouped-query attention",
        llama3(**SMALL | {"attention": grouped_query(4, 2), "ffn": {"part": "swiglu", "hidden": 344}}),
    ),
    "llama3-1b": Preset(
        "Llama 3.2 1B, as published",
        llama3(
            **PUBLISHED,
            vocab_size=128256,
            d_model=2048,
            n_layers=16,
            context_length=131072,
            positions={"part": "rope_llama3", "theta": 500000.0, "factor": 32.0, "original_context_length": 8192},
            attention=grouped_query(32, 8),
            ffn={"part": "swiglu", "hidden": 8192},
        ),
    ),
    "llama3-8b": Preset(
        "Llama 3 8B, as published",
        llama3(
            **PUBLISHED,
            vocab_size=128256,
            d_model=4096,
            n_layers=32,
            context_length=8192,
            attention=grouped_query(32, 8),
            ffn={"part": "swiglu", "hidden": 14336},
            tie_embeddings=False,
        ),
    ),
    "qwen3": Preset(
        "Qwen 3, laptop size: Llama-style with QK-norm per head",
        qwen3(
            **SMALL | {"attention": grouped_query(4, 2, 32, qk_norm="head"), "ffn": {"part": "swiglu", "hidden": 384}}
        ),
    ),
    "qwen3-0.6b": Preset(
        "Qwen 3 0.6B, as published",
        qwen3(
            **PUBLISHED,
            vocab_size=151936,
            d_model=1024,
            n_layers=28,
            context_length=40960,
            attention=grouped_query(16, 8, 128, qk_norm="head"),
            ffn={"part": "swiglu", "hidden": 3072},
        ),
    ),
    "gemma2": Preset(
        "Gemma 2, laptop size: sliding windows in every other layer, soft-caps, GEGLU, norms before and after branches",
        gemma2(4, 2, 32, 64, **SMALL | {"ffn": {"part": "geglu", "hidden": 512, "approximate": "tanh"}}),
    ),
    "gemma2-2b": Preset(
        "Gemma 2 2B, as published",
        gemma2(
            8,
            4,
            256,
            4096,
            **PUBLISHED,
            vocab_size=256000,
            d_model=2304,
            n_layers=26,
            context_length=8192,
            ffn={"part": "geglu", "hidden": 9216, "approximate": "tanh"},
        ),
    ),
    "olmo2": Preset(
        "OLMo 2, laptop size: norms on branch outputs, and on queries and keys over all heads",
        olmo2(**SMALL | {"attention": grouped_query(4, 4, qk_norm="full"), "ffn": {"part": "swiglu", "hidden": 512}}),
    ),
    "olmo2-1b": Preset(
        "OLMo 2 1B, as published",
        olmo2(
            **PUBLISHED,
            vocab_size=100352,
            d_model=2048,
            n_layers=16,
            context_length=4096,
            attention=grouped_query(16, 16, qk_norm="full"),
            ffn={"part": "swiglu", "hidden": 8192},
        ),
    ),
    "gptneox": Preset(
        "GPT-NeoX, laptop size: attention and feed-forward in parallel, RoPE on a quarter of each head",
        gptneox(4, **SMALL),
    ),
    "pythia-70m": Preset(
        "Pythia 70M (GPT-NeoX), as published",
        gptneox(8, **PUBLISHED, vocab_size=50304, d_model=512, n_layers=6, context_length=2048),
    ),
    "deepseek": Preset(
        "DeepSeek V3, laptop size: MLA; one dense layer, then MoE with 8 experts (top 2) and a shared expert",
        deepseek(
            dense=1,
            hidden=384,
            attention={
                "n_heads": 4,
                "kv_lora_rank": 64,
                "q_lora_rank": 96,
                "head_dim": 32,
                "rope_head_dim": 16,
                "v_head_dim": 32,
            },
            experts={"n_experts": 8, "top_k": 2, "hidden": 96},
            **SMALL,
        ),
    ),
    "deepseek-v3": Preset(
        "DeepSeek V3 671B, as published",
        deepseek(
            61,
            3,
            18432,
            {
                "n_heads": 128,
                "kv_lora_rank": 512,
                "q_lora_rank": 1536,
                "head_dim": 128,
                "rope_head_dim": 64,
                "v_head_dim": 128,
            },
            {
                "n_experts": 256,
                "top_k": 8,
                "n_groups": 8,
                "top_k_groups": 4,
                "hidden": 2048,
                "routed_scaling_factor": 2.5,
            },
            **PUBLISHED,
            vocab_size=129280,
            d_model=7168,
            context_length=4096,
        ),
    ),
    "nanochat": Preset(
        "nanochat, laptop size: squared ReLU, norms without weights, soft-capped logits, Muon",
        nanochat(4, **SMALL),
    ),
    "nanochat-d20": Preset(
        "nanochat d20 (561M), as published",
        nanochat(10, **PUBLISHED, vocab_size=65536, d_model=1280, n_layers=20, context_length=2048),
    ),
}
