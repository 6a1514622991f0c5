"""Today's decoders, each as published and at a size that trains on a laptop.

A family is one function of its sizes, so that the small model and the published one cannot drift apart.
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
    """Yang et al. 2025, arXiv:2505.09388: queries and keys are normalised per head."""
    return {
        "positions": {"part": "rope", "theta": 1000000.0},
        "norm": {"part": "rmsnorm", "eps": 1e-6},
        "residual": "pre",
        "init": "normal",
        "tie_embeddings": True,
    } | sizes


def gemma2(n_heads: int, n_kv_heads: int, head_dim: int, window: int, **sizes: Any) -> dict[str, Any]:
    """Gemma Team 2024, arXiv:2408.00118: windows in every second layer, soft-caps, norms before and after branches."""
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
    """OLMo Team 2024, arXiv:2501.00656: norms on what the branches give, and on all queries and all keys at once."""
    return {
        "positions": {"part": "rope", "theta": 500000.0},
        "norm": {"part": "rmsnorm", "eps": 1e-6},
        "residual": "reordered",
        "init": "normal",
    } | sizes


def gptneox(n_heads: int, **sizes: Any) -> dict[str, Any]:
    """Black et al. 2022, arXiv:2204.06745; Pythia, arXiv:2304.01373: parallel branches, a quarter of each head turned."""
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
    """DeepSeek-AI 2024, arXiv:2412.19437 (V3): latent attention, and experts balanced by a bias, after dense layers."""
    mixture = {"part": "moe", "scoring_func": "sigmoid", "load_balancing": "bias", "n_shared_experts": 1} | experts
    return {
        "n_layers": n_layers,
        "positions": {"part": "rope", "theta": 10000.0, "layout": "interleaved"},
        "attention": {"part": "mla"} | attention,
        "ffn": [{"part": "swiglu", "hidden": hidden}] * dense + [mixture] * (n_layers - dense),
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


def heads(n_heads: int, n_kv_heads: int, head_dim: int | None = None, **more: Any) -> dict[str, Any]:
    return {"part": "multihead", "n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim} | more


SMALL: dict[str, Any] = {"d_model": 128, "n_layers": 4, "context_length": 256} | LAPTOP

DECODERS: dict[str, Preset] = {
    "llama3": Preset(
        "Llama 3 for a laptop: RMSNorm, SwiGLU, rotary positions, grouped heads",
        llama3(**SMALL | {"attention": heads(4, 2), "ffn": {"part": "swiglu", "hidden": 344}}),
    ),
    "llama3-1b": Preset(
        "Llama 3.2 1B as published",
        llama3(
            **PUBLISHED,
            vocab_size=128256,
            d_model=2048,
            n_layers=16,
            context_length=131072,
            positions={"part": "rope_llama3", "theta": 500000.0, "factor": 32.0, "original_context_length": 8192},
            attention=heads(32, 8),
            ffn={"part": "swiglu", "hidden": 8192},
        ),
    ),
    "llama3-8b": Preset(
        "Llama 3 8B as published",
        llama3(
            **PUBLISHED,
            vocab_size=128256,
            d_model=4096,
            n_layers=32,
            context_length=8192,
            attention=heads(32, 8),
            ffn={"part": "swiglu", "hidden": 14336},
            tie_embeddings=False,
        ),
    ),
    "qwen3": Preset(
        "Qwen 3 for a laptop: Llama-style, queries and keys normalised per head",
        qwen3(**SMALL | {"attention": heads(4, 2, 32, qk_norm="head"), "ffn": {"part": "swiglu", "hidden": 384}}),
    ),
    "qwen3-0.6b": Preset(
        "Qwen 3 0.6B as published",
        qwen3(
            **PUBLISHED,
            vocab_size=151936,
            d_model=1024,
            n_layers=28,
            context_length=40960,
            attention=heads(16, 8, 128, qk_norm="head"),
            ffn={"part": "swiglu", "hidden": 3072},
        ),
    ),
    "gemma2": Preset(
        "Gemma 2 for a laptop: windows in every second layer, soft-caps, GEGLU, norms on both sides of a branch",
        gemma2(4, 2, 32, 64, **SMALL | {"ffn": {"part": "geglu", "hidden": 512, "approximate": "tanh"}}),
    ),
    "gemma2-2b": Preset(
        "Gemma 2 2B as published",
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
        "OLMo 2 for a laptop: norms on what branches give, and on queries and keys over all heads",
        olmo2(**SMALL | {"attention": heads(4, 4, qk_norm="full"), "ffn": {"part": "swiglu", "hidden": 512}}),
    ),
    "olmo2-1b": Preset(
        "OLMo 2 1B as published",
        olmo2(
            **PUBLISHED,
            vocab_size=100352,
            d_model=2048,
            n_layers=16,
            context_length=4096,
            attention=heads(16, 16, qk_norm="full"),
            ffn={"part": "swiglu", "hidden": 8192},
        ),
    ),
    "gptneox": Preset(
        "GPT-NeoX for a laptop: attention and feed-forward in parallel, a quarter of each head turned",
        gptneox(4, **SMALL),
    ),
    "pythia-70m": Preset(
        "Pythia 70M as published, a GPT-NeoX",
        gptneox(8, **PUBLISHED, vocab_size=50304, d_model=512, n_layers=6, context_length=2048),
    ),
    "deepseek": Preset(
        "DeepSeek V3 for a laptop: latent attention, and after a dense layer 8 experts, 2 of them and a shared one per token",
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
        "nanochat for a laptop: squared ReLU, norms without weights, soft-capped logits, Muon",
        nanochat(4, **SMALL),
    ),
    "nanochat-d20": Preset(
        "nanochat of depth 20, 561M, as published",
        nanochat(10, **PUBLISHED, vocab_size=65536, d_model=1280, n_layers=20, context_length=2048),
    ),
}
