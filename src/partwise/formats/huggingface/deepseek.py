"""DeepSeek V3: multi-head latent attention, and mixtures of experts after dense layers."""

import re
from collections.abc import Iterator
from typing import Any

from partwise.config import recipes_by_layer
from partwise.formats.huggingface.family import (
    Family,
    Settings,
    end_rules,
    read_rope,
    rms_norm,
    write_rope,
    write_rope_values,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.llama import GATED_MLP, PRE_NORMS
from partwise.formats.huggingface.tensors import Rows, RowsByHead, TensorRule, rules_for
from partwise.formats.huggingface.values import Values
from partwise.model import ModelConfig


class DeepSeekV3(Family):
    """Latent attention with interleaved RoPE, and experts chosen by sigmoid scores plus a bias per expert."""

    title, model_type, architecture = "DeepSeek V3", "deepseek_v3", "DeepseekV3ForCausalLM"

    def changes(self, function: Function) -> Settings:
        return {"ffn": {"load_balancing": "bias"}, "norm": {"affine": True, "unit_offset": False}}

    def write(self, function: Function) -> dict[str, Any]:
        attention, layers = function["attention"][0], function["ffn"]
        n_dense = next((index for index, layer in enumerate(layers) if layer["part"] == "moe"), len(layers))
        dense = layers[0] if n_dense else {}
        moe = layers[n_dense] if n_dense < len(layers) else {}
        return {
            "vocab_size": function["vocab_size"],
            "hidden_size": function["d_model"],
            "intermediate_size": dense.get("hidden", 1),
            "moe_intermediate_size": moe.get("hidden", 1),
            "num_hidden_layers": function["n_layers"],
            "num_attention_heads": attention.get("n_heads"),
            "num_key_value_heads": attention.get("n_heads"),
            "n_shared_experts": moe.get("n_shared_experts", 1),
            "n_routed_experts": moe.get("n_experts", 2),
            "routed_scaling_factor": moe.get("routed_scaling_factor", 1.0),
            "kv_lora_rank": attention.get("kv_lora_rank"),
            "q_lora_rank": attention.get("q_lora_rank"),
            "qk_rope_head_dim": attention.get("rope_head_dim"),
            "v_head_dim": attention.get("v_head_dim"),
            "qk_nope_head_dim": attention.get("head_dim"),
            "n_group": moe.get("n_groups", 1),
            "topk_group": moe.get("top_k_groups", 1),
            "num_experts_per_tok": moe.get("top_k", 1),
            "first_k_dense_replace": n_dense,
            "norm_topk_prob": moe.get("norm_topk_prob", True),
            "hidden_act": "silu",
            "max_position_embeddings": function["context_length"],
            "rms_norm_eps": function["norm"].get("eps"),
            "tie_word_embeddings": function["tie_embeddings"],
            **write_rope_values(write_rope(function["positions"])),
            "rope_interleave": function["positions"].get("layout") == "interleaved",
        }

    def read(self, values: Values) -> Settings:
        for key, accepted in {
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "pretraining_tp": (1,),
            "moe_layer_freq": (1,),
            "scoring_func": ("sigmoid",),
            "topk_method": ("noaux_tc",),
        }.items():
            values.expect(key, *accepted)
        # derived sizes; heads share one latent; predictions of later tokens
        values.ignore("head_dim", "qk_head_dim", "num_key_value_heads", "num_nextn_predict_layers", "num_mtp_layers")
        values.ignore("ep_size", "aux_loss_alpha", "seq_aux")
        n_layers, n_dense = values.layer_count("num_hidden_layers", 61), values.integer("first_k_dense_replace", 3)
        positions = read_rope(values)
        if positions["part"] != "rope":
            values.refuse("rope_parameters", "this family scales its scores by them, which is not supported")
        positions["layout"] = "interleaved" if values.flag("rope_interleave", True) else "half"
        hidden, expert_hidden = (
            values.integer("intermediate_size", 18432),
            values.integer("moe_intermediate_size", 2048),
        )
        dense = {"part": "swiglu", "hidden": hidden}
        moe = {
            "part": "moe",
            "expert": "swiglu",
            "scoring_func": "sigmoid",
            "load_balancing": "bias",
            "hidden": expert_hidden,
            "n_experts": values.integer("n_routed_experts", 256),
            "n_shared_experts": values.integer("n_shared_experts", 1),
            "top_k": values.integer("num_experts_per_tok", 8),
            "n_groups": values.integer("n_group", 8),
            "top_k_groups": values.integer("topk_group", 4),
            "norm_topk_prob": values.flag("norm_topk_prob", True),
            "routed_scaling_factor": values.number("routed_scaling_factor", 2.5),
        }
        if not moe["n_shared_experts"]:
            values.refuse("n_shared_experts", "at least one is needed")
        n_dense = min(n_dense, n_layers)
        return {
            "vocab_size": values.integer("vocab_size", 129280),
            "d_model": values.integer("hidden_size", 7168),
            "n_layers": n_layers,
            "context_length": values.integer("max_position_embeddings", 4096),
            "positions": positions,
            "attention": {
                "part": "mla",
                "n_heads": values.integer("num_attention_heads", 128),
                "head_dim": values.integer("qk_nope_head_dim", 128),
                "rope_head_dim": values.integer("qk_rope_head_dim", 64),
                "v_head_dim": values.integer("v_head_dim", 128),
                "kv_lora_rank": values.integer("kv_lora_rank", 512),
                "q_lora_rank": values.nullable("q_lora_rank", 1536),
                "eps": 1e-6,  # fixed, independent of rms_norm_eps
                "dropout": values.number("attention_dropout", 0.0),
            },
            "ffn": [dense] * n_dense + [moe] * (n_layers - n_dense),
            "norm": rms_norm(values, 1e-6),
            "residual": "pre",
            "tie_embeddings": values.flag("tie_word_embeddings", False),
        }

    def is_unused(self, name: str, config: ModelConfig) -> bool:
        layer = re.match(r"model\.layers\.(\d+)\.", name)  # layers after the last predict later tokens
        return super().is_unused(name, config) or (layer is not None and int(layer[1]) >= config.n_layers)

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "model.embed_tokens", "model.norm")
        attentions: list[Any] = recipes_by_layer(config.attention, config.n_layers)
        ffns: list[Any] = recipes_by_layer(config.ffn, config.n_layers)
        for layer, (attention, ffn) in enumerate(zip(attentions, ffns, strict=True)):
            theirs, ours = f"model.layers.{layer}", f"blocks.{layer}."
            for name, norm in PRE_NORMS.items():
                yield from rules_for(ours, name, f"{theirs}.{norm}", False)
            yield from self.attention_rules(attention, ours, f"{theirs}.self_attn")
            yield from self.expert_rules(ffn, ours, theirs) if ffn.name == "moe" else self.dense_rules(ours, theirs)

    def attention_rules(self, attention: Any, ours: str, theirs: str) -> Iterator[TensorRule]:
        names = {"attention.q": "q_proj"}
        if attention.q_lora_rank is not None:
            names = {"attention.q_down": "q_a_proj", "attention.q_norm": "q_a_layernorm", "attention.q": "q_b_proj"}
        names |= {"attention.kv_norm": "kv_a_layernorm", "attention.out": "o_proj"}
        for name, other in names.items():
            yield from rules_for(ours, name, f"{theirs}.{other}", False)
        latent, by_head = "attention.kv_down attention.k_rope", RowsByHead(attention.n_heads)
        yield from rules_for(ours, latent, f"{theirs}.kv_a_proj_with_mqa", False, Rows())
        yield from rules_for(ours, "attention.k attention.v", f"{theirs}.kv_b_proj", False, by_head)

    def dense_rules(self, ours: str, theirs: str) -> Iterator[TensorRule]:
        for name, other in GATED_MLP.items():
            yield from rules_for(ours, name, f"{theirs}.{other}", False)

    def expert_rules(self, ffn: Any, ours: str, theirs: str) -> Iterator[TensorRule]:
        yield from rules_for(ours, "ffn.router", f"{theirs}.mlp.gate", False)
        yield TensorRule(f"{theirs}.mlp.gate.e_score_correction_bias", (f"{ours}ffn.router.balance.bias",))
        for kind in ("gate", "up", "down"):
            yield from rules_for(ours, f"ffn.shared.{kind}", f"{theirs}.mlp.shared_experts.{kind}_proj", False)
            for expert in range(ffn.n_experts):
                name = f"{theirs}.mlp.experts.{expert}.{kind}_proj.weight"
                yield TensorRule(name, (f"{ours}ffn.experts.{kind}.weight",), expert=expert)
