"""nanochat."""

from collections.abc import Iterator, Mapping
from typing import Any

from partwise.config import recipes_by_layer
from partwise.formats.huggingface.family import (
    UNGATED,
    Settings,
    block_rules,
    end_rules,
)
from partwise.formats.huggingface.function import Function
from partwise.formats.huggingface.llama import ATTENTION, Llama
from partwise.formats.huggingface.tensors import Layout, SwappedHalves, TensorRule
from partwise.formats.huggingface.values import Values
from partwise.model import ModelConfig


class NanoChat(Llama):
    """Norms without weights, QK-norm, squared ReLU and soft-capped logits."""

    title, model_type, architecture = "nanochat", "nanochat", "NanoChatForCausalLM"
    activations, activation, qk_norm, has_mlp_bias = UNGATED, "relu2", "head", False
    modules = ATTENTION | {"ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"}

    def changes(self, function: Function) -> Settings:
        changes = super().changes(function)
        return changes | {"norm": {}, "attention": changes["attention"] | {"qk_norm_affine": False}}

    def write(self, function: Function) -> dict[str, Any]:
        values = super().write(function) | {"final_logit_softcapping": function["logit_softcap"]}
        del values["head_dim"]
        return values

    def read(self, values: Values) -> Settings:
        softcap = values.nullable_number("final_logit_softcapping", 15.0)
        return super().read(values) | {"embed_norm": True, "logit_softcap": softcap}

    def read_positions(self, values: Values, n_layers: int) -> Settings:
        rope = super().read_positions(values, n_layers)
        # it normalizes after the rotation, which cancels a scale
        return rope | {"mscale": 1.0} if rope["part"] == "rope_yarn" else rope

    def read_norm(self, values: Values) -> Settings:
        return super().read_norm(values) | {"affine": False}

    def read_attention(self, values: Values, width: int) -> Settings:
        return super().read_attention(values, width) | {"qk_norm_affine": False}

    def rules(self, config: ModelConfig) -> Iterator[TensorRule]:
        yield from end_rules(config, "model.embed_tokens", None)
        for layer in range(config.n_layers):
            yield from block_rules(config, layer, f"model.layers.{layer}", self.modules, self.layouts(config, layer))

    def layouts(self, config: ModelConfig, layer: int) -> Mapping[str, Layout]:
        attention: Any = recipes_by_layer(config.attention, config.n_layers)[layer]
        swapped = SwappedHalves(attention.heads(config.d_model).head_dim)  # it rotates in the opposite direction
        return {"attention.q": swapped, "attention.k": swapped}
