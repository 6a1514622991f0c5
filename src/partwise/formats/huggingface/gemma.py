"""Gemma 2."""

from typing import Any

from partwise.formats.huggingface.family import (
    Settings,
    read_windows,
    write_activation,
    write_windows,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.llama import ATTENTION, GATED_MLP, Llama
from partwise.formats.huggingface.values import Values


class Gemma2(Llama):
    """Norms before and after branches, soft-caps, scaled embeddings, sliding windows in some layers."""

    title, model_type, architecture = "Gemma 2", "gemma2", "Gemma2ForCausalLM"
    activation, activation_key = "gelu_pytorch_tanh", "hidden_activation"
    residual, tied, has_mlp_bias = "sandwich", True, False
    modules = (
        ATTENTION
        | GATED_MLP
        | {
            "residual.norms.attention": "input_layernorm",
            "residual.post_norms.attention": "post_attention_layernorm",
            "residual.norms.ffn": "pre_feedforward_layernorm",
            "residual.post_norms.ffn": "post_feedforward_layernorm",
        }
    )

    def changes(self, function: Function) -> Settings:
        return super().changes(function) | {"norm": {"affine": True, "unit_offset": True}}

    def write(self, function: Function) -> dict[str, Any]:
        attention = function["attention"][0]
        scale = attention.get("scale")
        activation, windows = write_activation(function["ffn"][0], self.activations), write_windows(function)
        return (
            super().write(function)
            | windows
            | {
                "sliding_window": windows["sliding_window"] or function["context_length"],  # needed for any layer_types
                "hidden_act": activation,
                "query_pre_attn_scalar": None if scale is None else round(scale**-2),
                "attn_logit_softcapping": attention.get("softcap"),
                "final_logit_softcapping": function["logit_softcap"],
            }
        )

    def read(self, values: Values) -> Settings:
        values.ignore("hidden_act")  # an older name of hidden_activation, which `transformers` does not read
        values.expect("use_bidirectional_attention", None, False)
        softcap = values.nullable_number("final_logit_softcapping", 30.0)
        return super().read(values) | {"scale_embeddings": True, "logit_softcap": softcap}

    def read_norm(self, values: Values) -> Settings:
        return super().read_norm(values) | {"unit_offset": True}

    def read_attention(self, values: Values, width: int) -> Settings:
        scalar = values.number("query_pre_attn_scalar", 256)
        if scalar <= 0:
            values.refuse("query_pre_attn_scalar", "expected a positive number")
        softcap = values.nullable_number("attn_logit_softcapping", 50.0)
        return super().read_attention(values, width) | {"scale": scalar**-0.5, "softcap": softcap}

    def read_head_dim(self, values: Values, width: int, n_heads: int) -> int:
        return values.integer("head_dim", 256)

    def read_windows(self, values: Values, n_layers: int) -> list[int | None]:
        default = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(n_layers)]
        return read_windows(values, n_layers, values.nullable("sliding_window", 4096), default)
