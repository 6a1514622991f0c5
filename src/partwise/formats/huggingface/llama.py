"""Llama and families that vary it: Mistral, Qwen 2, Qwen 3, SmolLM3, Arcee and OLMo 2."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from partwise.formats.huggingface.family import (
    GATED,
    UNGATED,
    Family,
    Settings,
    block_rules,
    end_rules,
    read_rope,
    read_windows,
    rms_norm,
    with_windows,
    write_activation,
    write_rope,
    write_rope_values,
    write_windows,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.tensors import Layout, TensorRule
from partwise.formats.huggingface.values import Values
from partwise.model import ModelConfig

ATTENTION = {
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
}
QK_NORM = {"attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm"}
GATED_MLP = {"ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
PRE_NORMS = {
    "residual.norms.attention": "input_layernorm",
    "residual.norms.ffn": "post_attention_layernorm",
}


class Llama(Family):
    """RMSNorm, RoPE, grouped-query attention and a gated feed-forward layer."""

    title, model_type, architecture = "Llama", "llama", "LlamaForCausalLM"
    activations: ClassVar[Mapping[str, Settings]] = GATED
    activation: ClassVar[str] = "silu"
    activation_key: ClassVar[str] = "hidden_act"
    qk_norm: ClassVar[str] = "none"
    residual: ClassVar[str] = "pre"
    eps: ClassVar[float] = 1e-6
    theta: ClassVar[float] = 10000.0
    tied: ClassVar[bool] = False  # by default
    modules: ClassVar[Mapping[str, str]] = ATTENTION | GATED_MLP | PRE_NORMS
    has_mlp_bias: ClassVar[bool] = True

    def changes(self, function: Function) -> Settings:
        layers = function["attention"]
        has_bias = any(layer.get("bias") or layer.get("out_bias") for layer in layers)
        return {
            "attention": {"bias": has_bias, "out_bias": has_bias, "qk_norm_affine": True},
            "ffn": {"bias": any(layer.get("bias") for layer in function["ffn"])},
            "norm": {"affine": True, "unit_offset": False},
            "positions": {"layout": "half"},
        }

    def write(self, function: Function) -> dict[str, Any]:
        attention, ffn = function["attention"][0], function["ffn"][0]
        values = {
            "vocab_size": function["vocab_size"],
            "hidden_size": function["d_model"],
            "intermediate_size": ffn.get("hidden"),
            "num_hidden_layers": function["n_layers"],
            "num_attention_heads": attention.get("n_heads"),
            "num_key_value_heads": attention.get("n_kv_heads"),
            "head_dim": attention.get("head_dim"),
            self.activation_key: write_activation(ffn, self.activations),
            "max_position_embeddings": function["context_length"],
            "rms_norm_eps": function["norm"].get("eps"),
            "tie_word_embeddings": function["tie_embeddings"],
            "attention_bias": bool(attention.get("bias")),
            "attention_dropout": 0.0,
            **self.write_positions(function["positions"]),
        }
        if self.has_mlp_bias:
            values["mlp_bias"] = bool(ffn.get("bias"))
        return values

    def write_positions(self, positions: Mapping[str, Any]) -> dict[str, Any]:
        return write_rope_values(write_rope(positions))

    def read(self, values: Values) -> Settings:
        width, n_layers = values.integer("hidden_size"), values.layer_count("num_hidden_layers")
        return {
            "vocab_size": values.integer("vocab_size"),
            "d_model": width,
            "n_layers": n_layers,
            "context_length": values.integer("max_position_embeddings", 2048),
            "positions": self.read_positions(values, n_layers),
            "attention": with_windows(self.read_attention(values, width), self.read_windows(values, n_layers)),
            "ffn": self.read_ffn(values),
            "norm": self.read_norm(values),
            "residual": {"part": self.residual, "dropout": 0.0},
            "tie_embeddings": values.flag("tie_word_embeddings", self.tied),
        }

    def read_positions(self, values: Values, n_layers: int) -> Settings:
        return read_rope(values, self.theta)

    def read_norm(self, values: Values) -> Settings:
        return rms_norm(values, self.eps)

    def read_attention(self, values: Values, width: int) -> Settings:
        values.expect("pretraining_tp", 1)
        for key in ("rope_interleaved", "use_mrope"):  # of published models, without meaning to `transformers` if false
            values.expect(key, False)
        values.ignore("is_llama_config")
        bias, out_bias = self.read_biases(values)
        n_heads = values.integer("num_attention_heads")
        return {
            "part": "multihead",
            "n_heads": n_heads,
            "n_kv_heads": values.integer("num_key_value_heads", n_heads),
            "head_dim": self.read_head_dim(values, width, n_heads),
            "bias": bias,
            "out_bias": out_bias,
            "dropout": values.number("attention_dropout", 0.0),
            "qk_norm": self.qk_norm,
            "qk_norm_eps": values.number("rms_norm_eps", self.eps),
        }

    def read_head_dim(self, values: Values, width: int, n_heads: int) -> int:
        return values.integer("head_dim", width // max(n_heads, 1))

    def read_biases(self, values: Values) -> tuple[bool, bool]:
        has_bias = values.flag("attention_bias", False)
        return has_bias, has_bias

    def read_windows(self, values: Values, n_layers: int) -> list[int | None]:
        return [None] * n_layers

    def read_ffn(self, values: Values) -> Settings:
        activation = values.name(self.activation_key, self.activations, self.activation)
        hidden, has_bias = values.integer("intermediate_size"), self.has_mlp_bias and values.flag("mlp_bias", False)
        return self.activations[activation] | {"hidden": hidden, "bias": has_bias}

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "model.embed_tokens", "model.norm")
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"model.layers.{layer}", self.modules, self.layouts(config, layer))

    def layouts(self, config: ModelConfig, layer: int) -> Mapping[str, Layout]:
        return {}


class Mistral(Llama):
    """Llama with a sliding window in every layer."""

    title, model_type, architecture = "Mistral", "mistral", "MistralForCausalLM"
    has_mlp_bias = False

    def write(self, function: Function) -> dict[str, Any]:
        values = super().write(function) | {"sliding_window": write_windows(function)["sliding_window"]}
        del values["attention_bias"]
        return values

    def read_biases(self, values: Values) -> tuple[bool, bool]:
        values.expect("attention_bias", False)
        return False, False

    def read_windows(self, values: Values, n_layers: int) -> list[int | None]:
        return [values.nullable("sliding_window", 4096)] * n_layers


class Windowed(Llama):
    """A family with sliding windows in some layers, after those without: Qwen."""

    has_mlp_bias = False

    def write(self, function: Function) -> dict[str, Any]:
        windows = write_windows(function)
        has_window = windows["sliding_window"] is not None
        return super().write(function) | windows | {"use_sliding_window": has_window}

    def read_windows(self, values: Values, n_layers: int) -> list[int | None]:
        size = values.nullable("sliding_window", 4096)
        size = size if values.flag("use_sliding_window", False) else None
        first = values.integer("max_window_layers", 28)
        default = [
            "sliding_attention" if size is not None and layer >= first else "full_attention"
            for layer in range(n_layers)
        ]
        return read_windows(values, n_layers, size, default)


class Qwen2(Windowed):
    """Llama with biases of queries, keys and values."""

    title, model_type, architecture = "Qwen 2", "qwen2", "Qwen2ForCausalLM"

    def changes(self, function: Function) -> Settings:
        changes = super().changes(function)
        return changes | {"attention": {"bias": True, "qk_norm_affine": True}}

    def write(self, function: Function) -> dict[str, Any]:
        values = super().write(function)
        del values["attention_bias"], values["head_dim"]
        return values

    def read_biases(self, values: Values) -> tuple[bool, bool]:
        return True, False


class Qwen3(Windowed):
    """Llama with QK-norm per head."""

    title, model_type, architecture = "Qwen 3", "qwen3", "Qwen3ForCausalLM"
    qk_norm = "head"
    modules = ATTENTION | QK_NORM | GATED_MLP | PRE_NORMS

    def read_head_dim(self, values: Values, width: int, n_heads: int) -> int:
        return values.integer("head_dim", 128)


class SmolLM3(Llama):
    """Llama with sliding windows in some layers; here with RoPE in all layers or in none."""

    title, model_type, architecture = "SmolLM3", "smollm3", "SmolLM3ForCausalLM"
    theta, tied = 2000000.0, True

    def write(self, function: Function) -> dict[str, Any]:
        windows = write_windows(function)
        has_rope = function["positions"]["part"] != "none"
        values = super().write(function) | windows | {"use_sliding_window": windows["sliding_window"] is not None}
        return values | {"no_rope_layers": [int(has_rope)] * function["n_layers"]}

    def write_positions(self, positions: Mapping[str, Any]) -> dict[str, Any]:
        return super().write_positions({"part": "rope", "theta": 10000.0} if positions["part"] == "none" else positions)

    def read_positions(self, values: Values, n_layers: int) -> Settings:
        rope = super().read_positions(values, n_layers)
        interval = values.integer("no_rope_layer_interval", 4)
        default = [int((layer + 1) % interval != 0) for layer in range(n_layers)] if interval else [1] * n_layers
        kinds = values.layers("no_rope_layers", n_layers, default)
        if len({*kinds}) != 1 or kinds[0] not in (0, 1):
            values.values.setdefault("no_rope_layers", kinds)
            values.refuse("no_rope_layers", "RoPE in some layers only is not supported")
        return rope if kinds[0] else {"part": "none"}

    def read_windows(self, values: Values, n_layers: int) -> list[int | None]:
        size = values.nullable("sliding_window", None)
        size = size if values.flag("use_sliding_window", False) else None
        return read_windows(values, n_layers, size, ["full_attention"] * n_layers)


class Arcee(Llama):
    """Llama with an ungated feed-forward layer."""

    title, model_type, architecture = "Arcee", "arcee", "ArceeForCausalLM"
    activations, activation = UNGATED, "relu2"
    eps = 1e-5
    modules = ATTENTION | {"ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"} | PRE_NORMS


class Olmo2(Llama):
    """Norms on the outputs of branches, and on queries and keys over all heads."""

    title, model_type, architecture = "OLMo 2", "olmo2", "Olmo2ForCausalLM"
    qk_norm, residual, has_mlp_bias = "full", "reordered", False
    eps = 1e-5
    modules = (
        ATTENTION
        | GATED_MLP
        | QK_NORM
        | {
            "residual.norms.attention": "post_attention_layernorm",
            "residual.norms.ffn": "post_feedforward_layernorm",
        }
    )

    def write(self, function: Function) -> dict[str, Any]:
        values = super().write(function)
        del values["head_dim"]
        return values

    def write_positions(self, positions: Mapping[str, Any]) -> dict[str, Any]:
        values = super().write_positions(positions)
        if positions["part"] == "rope_linear":  # of this family, releases before 5.0 accept these two keys alone
            values["rope_scaling"] = {"type": "linear", "factor": positions["factor"]}
        return values
