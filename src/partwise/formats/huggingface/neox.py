"""Families with LayerNorm and RoPE: GPT-NeoX and StableLM."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from partwise.config import recipes_by_layer
from partwise.formats.huggingface.family import (
    GATED,
    UNGATED,
    Family,
    Settings,
    block_rules,
    end_rules,
    read_rope,
    write_activation,
    write_rope,
    write_rope_values,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.gpt2 import ALL_BIASES, layer_norm
from partwise.formats.huggingface.llama import ATTENTION, GATED_MLP
from partwise.formats.huggingface.tensors import Layout, RowsByHead, TensorRule
from partwise.formats.huggingface.values import Values
from partwise.model import ModelConfig


class GPTNeoX(Family):
    """RoPE on a part of each head, and branches in parallel, each with its norm, or one after the other."""

    title, model_type, architecture, prefix = "GPT-NeoX", "gpt_neox", "GPTNeoXForCausalLM", "gpt_neox."
    head = "embed_out"
    unused = r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
    modules: ClassVar[Mapping[str, str]] = {
        "attention.q attention.k attention.v": "attention.query_key_value",
        "attention.out": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
        "residual.norms.attention": "input_layernorm",
        "residual.norms.ffn": "post_attention_layernorm",
    }

    def changes(self, function: Function) -> Settings:
        has_bias = any(layer.get("bias") or layer.get("out_bias") for layer in function["attention"])
        attention = {"bias": has_bias, "out_bias": has_bias}
        return ALL_BIASES | {"attention": attention, "positions": {"layout": "half"}}

    def write(self, function: Function) -> dict[str, Any]:
        attention, ffn = function["attention"][0], function["ffn"][0]
        rope = {"partial_rotary_factor": 1.0} | write_rope(function["positions"])
        return {
            "vocab_size": function["vocab_size"],
            "hidden_size": function["d_model"],
            "num_hidden_layers": function["n_layers"],
            "num_attention_heads": attention.get("n_heads"),
            "intermediate_size": ffn.get("hidden"),
            "hidden_act": write_activation(ffn, UNGATED),
            "max_position_embeddings": function["context_length"],
            "layer_norm_eps": function["norm"].get("eps"),
            "use_parallel_residual": function["residual"]["part"] == "parallel",
            "attention_bias": bool(attention.get("bias")),
            "tie_word_embeddings": function["tie_embeddings"],
            **write_rope_values(rope, "rotary_emb_base"),
            "rotary_pct": rope["partial_rotary_factor"],
        }

    def read(self, values: Values) -> Settings:
        has_bias = values.flag("attention_bias", True)
        activation = values.name("hidden_act", UNGATED, "gelu")
        is_parallel = values.flag("use_parallel_residual", True)
        values.ignore("classifier_dropout")
        values.expect("is_decoder", False, True)
        return {
            "vocab_size": values.integer("vocab_size", 50432),
            "d_model": values.integer("hidden_size", 6144),
            "n_layers": values.layer_count("num_hidden_layers", 44),
            "context_length": values.integer("max_position_embeddings", 2048),
            "positions": read_rope(
                values, values.number("rotary_emb_base", 10000.0), values.number("rotary_pct", 0.25)
            ),
            "attention": {
                "part": "multihead",
                "n_heads": values.integer("num_attention_heads", 64),
                "bias": has_bias,
                "out_bias": has_bias,
                "dropout": values.number("attention_dropout", 0.0),
            },
            "ffn": UNGATED[activation] | {"hidden": values.integer("intermediate_size", 24576), "bias": True},
            "norm": layer_norm(values.number("layer_norm_eps", 1e-5)),
            "residual": {"part": "parallel", "shared_norm": False, "dropout": values.number("hidden_dropout", 0.0)}
            if is_parallel
            else {"part": "pre", "dropout": values.number("hidden_dropout", 0.0)},
            "tie_embeddings": values.flag("tie_word_embeddings", False),
        }

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "gpt_neox.embed_in", "gpt_neox.final_layer_norm", self.head)
        attentions: list[Any] = recipes_by_layer(config.attention, config.n_layers)
        for layer, attention in enumerate(attentions):
            layouts: Mapping[str, Layout] = {"attention.q attention.k attention.v": RowsByHead(attention.n_heads)}
            yield from block_rules(config, layer, f"gpt_neox.layers.{layer}", self.modules, layouts)


class StableLM(Family):
    """LayerNorm, a gated feed-forward layer, RoPE on a part of each head, and branches in sequence or in parallel."""

    title, model_type, architecture = "StableLM", "stablelm", "StableLmForCausalLM"
    modules: ClassVar[Mapping[str, str]] = ATTENTION | GATED_MLP

    def changes(self, function: Function) -> Settings:
        return {"norm": {"affine": True, "bias": True}, "positions": {"layout": "half"}}

    def write(self, function: Function) -> dict[str, Any]:
        attention, ffn = function["attention"][0], function["ffn"][0]
        rope = {"partial_rotary_factor": 1.0} | write_rope(function["positions"])
        return {
            "vocab_size": function["vocab_size"],
            "hidden_size": function["d_model"],
            "intermediate_size": ffn.get("hidden"),
            "num_hidden_layers": function["n_layers"],
            "num_attention_heads": attention.get("n_heads"),
            "num_key_value_heads": attention.get("n_kv_heads"),
            "hidden_act": write_activation(ffn, GATED),
            "max_position_embeddings": function["context_length"],
            "layer_norm_eps": function["norm"].get("eps"),
            "use_qkv_bias": bool(attention.get("bias")),
            "qk_layernorm": False,
            "use_parallel_residual": function["residual"]["part"] == "parallel",
            "tie_word_embeddings": function["tie_embeddings"],
            **write_rope_values(rope),
            "partial_rotary_factor": rope["partial_rotary_factor"],
        }

    def read(self, values: Values) -> Settings:
        values.expect("qk_layernorm", False)  # a LayerNorm for every head
        activation = values.name("hidden_act", GATED, "silu")
        is_parallel = values.flag("use_parallel_residual", False)
        dropout = values.number("hidden_dropout", 0.0)
        return {
            "vocab_size": values.integer("vocab_size", 50304),
            "d_model": values.integer("hidden_size", 2560),
            "n_layers": values.layer_count("num_hidden_layers", 32),
            "context_length": values.integer("max_position_embeddings", 4096),
            "positions": read_rope(values, 10000.0, values.number("partial_rotary_factor", 0.25)),
            "attention": {
                "part": "multihead",
                "n_heads": values.integer("num_attention_heads", 32),
                "n_kv_heads": values.integer("num_key_value_heads", 32),
                "bias": values.flag("use_qkv_bias", False),
                "dropout": values.number("attention_dropout", 0.0),
            },
            "ffn": GATED[activation] | {"hidden": values.integer("intermediate_size", 6912)},
            "norm": layer_norm(values.number("layer_norm_eps", 1e-5)),
            "residual": {"part": "parallel", "shared_norm": True, "dropout": dropout}
            if is_parallel
            else {"part": "pre", "dropout": dropout},
            "tie_embeddings": values.flag("tie_word_embeddings", False),
        }

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "model.embed_tokens", "model.norm")
        if getattr(config.residual, "shared_norm", False):
            norms = {"residual.norms.shared": "input_layernorm"}
        else:
            norms = {
                "residual.norms.attention": "input_layernorm",
                "residual.norms.ffn": "post_attention_layernorm",
            }
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"model.layers.{layer}", {**self.modules, **norms}, {})
