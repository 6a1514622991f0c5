"""Families with LayerNorm, and positions added to embeddings or scores: GPT-2, OPT and MPT."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from partwise.formats.huggingface.family import (
    UNGATED,
    Family,
    Settings,
    block_rules,
    end_rules,
    write_activation,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.tensors import Offset, Rows, TensorRule, Transposed
from partwise.formats.huggingface.values import Values
from partwise.model import ModelConfig

ALL_BIASES: Settings = {
    "attention": {"bias": True, "out_bias": True},
    "ffn": {"bias": True},
    "norm": {"affine": True, "bias": True},
}


def layer_norm(eps: float, bias: bool = True, affine: bool = True) -> Settings:
    return {"part": "layernorm", "eps": eps, "affine": affine, "bias": bias}


class GPT2(Family):
    """LayerNorm, biases everywhere, learned positions and an ungated feed-forward layer.

    Fixed sinusoidal positions become a table, and without positions it is zero.
    """

    title, model_type, architecture, prefix = "GPT-2", "gpt2", "GPT2LMHeadModel", "transformer."
    unused = r".*\.attn\.(bias|masked_bias)"  # the causal mask in older files
    modules: ClassVar[Mapping[str, str]] = {
        "attention.q attention.k attention.v": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
        "residual.norms.attention": "ln_1",
        "residual.norms.ffn": "ln_2",
    }

    def changes(self, function: Function) -> Settings:
        return ALL_BIASES | {"positions": "learned"}

    def write(self, function: Function) -> dict[str, Any]:
        attention, ffn = function["attention"][0], function["ffn"][0]
        activation = write_activation(ffn, UNGATED)
        return {
            "vocab_size": function["vocab_size"],
            "n_positions": function["context_length"],
            "n_embd": function["d_model"],
            "n_layer": function["n_layers"],
            "n_head": attention.get("n_heads"),
            "n_inner": ffn.get("hidden"),
            "activation_function": "gelu_new" if activation == "gelu_pytorch_tanh" else activation,
            "layer_norm_epsilon": function["norm"].get("eps"),
            "tie_word_embeddings": function["tie_embeddings"],
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
        }

    def read(self, values: Values) -> Settings:
        for key, accepted in {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False, True),  # a matter of precision
            "add_cross_attention": (False,),
        }.items():
            values.expect(key, *accepted)
        values.ignore(
            "n_ctx",
            "n_special",
            "predict_special_tokens",
            *(key for key in values.values if key.startswith("summary_")),
        )
        width = values.integer("n_embd", 768)
        activation = values.name("activation_function", UNGATED, "gelu_new")
        return {
            "vocab_size": values.integer("vocab_size", 50257),
            "d_model": width,
            "n_layers": values.layer_count("n_layer", 12),
            "context_length": values.integer("n_positions", 1024),
            "positions": "learned",
            "attention": {
                "part": "multihead",
                "n_heads": values.integer("n_head", 12),
                "bias": True,
                "out_bias": True,
                "dropout": values.number("attn_pdrop", 0.1),
            },
            "ffn": UNGATED[activation] | {"hidden": values.integer("n_inner", 4 * width), "bias": True},
            "norm": layer_norm(values.number("layer_norm_epsilon", 1e-5)),
            "residual": {"part": "pre", "dropout": values.number("resid_pdrop", 0.1)},
            "embed_dropout": values.number("embd_pdrop", 0.1),
            "tie_embeddings": values.flag("tie_word_embeddings", True),
        }

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "transformer.wte", "transformer.ln_f")
        yield TensorRule("transformer.wpe.weight", ("positions.weight",))
        matrices = [name for name in self.modules if not name.startswith("residual")]
        layouts = dict.fromkeys(matrices, Transposed())
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"transformer.h.{layer}", self.modules, layouts)


class OPT(Family):
    """GPT-2 with norms after each branch, as in 2017, or before; its first two positions are unused."""

    title, model_type, architecture, prefix = "OPT", "opt", "OPTForCausalLM", "model."
    modules: ClassVar[Mapping[str, str]] = {
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.out": "self_attn.out_proj",
        "ffn.up": "fc1",
        "ffn.down": "fc2",
        "residual.norms.attention": "self_attn_layer_norm",
        "residual.norms.ffn": "final_layer_norm",
    }

    def changes(self, function: Function) -> Settings:
        layers = [*function["attention"], *function["ffn"]]
        has_bias = any(layer.get("bias") or layer.get("out_bias") for layer in layers)
        affine = function["norm"].get("affine", True)
        return {
            "attention": {"bias": has_bias, "out_bias": has_bias},
            "ffn": {"bias": has_bias},
            "norm": {"bias": True} if affine else {},
            "positions": "learned",
        }

    def write(self, function: Function) -> dict[str, Any]:
        attention, ffn = function["attention"][0], function["ffn"][0]
        return {
            "vocab_size": function["vocab_size"],
            "hidden_size": function["d_model"],
            "word_embed_proj_dim": function["d_model"],
            "num_hidden_layers": function["n_layers"],
            "ffn_dim": ffn.get("hidden"),
            "max_position_embeddings": function["context_length"],
            "do_layer_norm_before": function["residual"]["part"] != "post",
            "_remove_final_layer_norm": function["residual"].get("final_norm") is False,
            "num_attention_heads": attention.get("n_heads"),
            "activation_function": write_activation(ffn, UNGATED),
            "enable_bias": bool(attention.get("bias")),
            "layer_norm_elementwise_affine": bool(function["norm"].get("affine")),
            "tie_word_embeddings": function["tie_embeddings"],
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }

    def read(self, values: Values) -> Settings:
        width = values.integer("hidden_size", 768)
        values.expect("word_embed_proj_dim", width)
        values.ignore("layerdrop", "init_std", "activation_dropout")
        is_pre, has_bias = values.flag("do_layer_norm_before", True), values.flag("enable_bias", True)
        removes_final = values.flag("_remove_final_layer_norm", False)
        dropout = values.number("dropout", 0.1)
        activation = values.name("activation_function", UNGATED, "relu")
        return {
            "vocab_size": values.integer("vocab_size", 50272),
            "d_model": width,
            "n_layers": values.layer_count("num_hidden_layers", 12),
            "context_length": values.integer("max_position_embeddings", 2048),
            "positions": "learned",
            "attention": {
                "part": "multihead",
                "n_heads": values.integer("num_attention_heads", 12),
                "bias": has_bias,
                "out_bias": has_bias,
                "dropout": values.number("attention_dropout", 0.0),
            },
            "ffn": UNGATED[activation] | {"hidden": values.integer("ffn_dim", 3072), "bias": has_bias},
            "norm": layer_norm(1e-5, affine=values.flag("layer_norm_elementwise_affine", True)),
            "residual": {
                "part": "pre" if is_pre else "post",
                "dropout": dropout,
                "final_norm": is_pre and not removes_final,
            },
            "tie_embeddings": values.flag("tie_word_embeddings", True),
        }

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        has_norm = getattr(config.norm, "affine", True)
        has_final = has_norm and getattr(config.residual, "final_norm", True)
        stem = "model.decoder"
        yield from end_rules(config, f"{stem}.embed_tokens", f"{stem}.final_layer_norm" if has_final else None)
        yield TensorRule(f"{stem}.embed_positions.weight", ("positions.weight",), Offset(2))
        modules = {name: each for name, each in self.modules.items() if has_norm or not name.startswith("residual")}
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"{stem}.layers.{layer}", modules, {})


class MPT(Family):
    """ALiBi, LayerNorm without bias, and a feed-forward layer with exact GELU and four times the width."""

    title, model_type, architecture, prefix = "MPT", "mpt", "MptForCausalLM", "transformer."
    modules: ClassVar[Mapping[str, str]] = {
        "attention.q attention.k attention.v": "attn.Wqkv",
        "attention.out": "attn.out_proj",
        "ffn.up": "ffn.up_proj",
        "ffn.down": "ffn.down_proj",
        "residual.norms.attention": "norm_1",
        "residual.norms.ffn": "norm_2",
    }

    def changes(self, function: Function) -> Settings:
        return {"norm": {"affine": True}}

    def write(self, function: Function) -> dict[str, Any]:
        attention = function["attention"][0]
        return {
            "vocab_size": function["vocab_size"],
            "d_model": function["d_model"],
            "n_layers": function["n_layers"],
            "n_heads": attention.get("n_heads"),
            "expansion_ratio": 4,
            "max_seq_len": function["context_length"],
            "layer_norm_epsilon": function["norm"].get("eps"),
            "tie_word_embeddings": function["tie_embeddings"],
            "attn_config": {"alibi": True, "softmax_scale": attention.get("scale")},
            "no_bias": True,
        }

    def read(self, values: Values) -> Settings:
        width = values.integer("d_model", 2048)
        attention = values.section("attn_config")
        for key, accepted in {
            "alibi": (True,),
            "alibi_bias_max": (8,),
            "attn_type": ("multihead_attention",),
            "clip_qkv": (None,),
            "prefix_lm": (False,),
            "qk_ln": (False,),
            "attn_uses_sequence_id": (False,),
        }.items():
            attention.expect(key, *accepted)
        attention.ignore("attn_impl")
        attention.expect("is_encoder_decoder", False)
        for key, accepted in {"expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (None,)}.items():
            values.expect(key, *accepted)
        values.ignore("learned_pos_emb", "init_device", "embedding_fraction", "norm_type", "init_config", "verbose")
        dropout = attention.number("attn_pdrop", 0.0)
        settings: Settings = {
            "vocab_size": values.integer("vocab_size", 50368),
            "d_model": width,
            "n_layers": values.layer_count("n_layers", 24),
            "context_length": values.integer("max_seq_len", 2048),
            "positions": "alibi",
            "attention": {
                "part": "multihead",
                "n_heads": values.integer("n_heads", 16),
                "scale": attention.optional_number("softmax_scale"),
                "dropout": dropout,
            },
            "ffn": UNGATED["gelu"] | {"hidden": 4 * width},
            "norm": layer_norm(values.number("layer_norm_epsilon", 1e-5), bias=False),
            "residual": {"part": "pre", "dropout": values.number("resid_pdrop", 0.0)},
            "embed_dropout": values.number("emb_pdrop", 0.0),
            "tie_embeddings": values.flag("tie_word_embeddings", True),
        }
        attention.finish()
        return settings

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "transformer.wte", "transformer.norm_f")
        layouts = {"attention.q attention.k attention.v": Rows()}
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"transformer.blocks.{layer}", self.modules, layouts)
