"""`transformers`' BERT with the weights of our encoder."""

from typing import Any

import pytest
import torch

import partwise

LAYERS = 2
NAMES = {
    "attention.self.query": "attention.q",
    "attention.self.key": "attention.k",
    "attention.self.value": "attention.v",
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "residual.norms.attention",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "residual.norms.ffn",
}
"""A module of a BERT layer -> that of our block."""


def bert_of(model: partwise.Transformer, heads: int, hidden: int, padding_idx: int) -> Any:
    """A BertModel in float64, on one segment, whose embedding is part of the learned positions."""
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    state = model.state_dict()
    vocabulary, width = state["embed.weight"].shape
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        intermediate_size=hidden,
        max_position_embeddings=len(state["encoder.positions.weight"]),
        pad_token_id=padding_idx,
        attn_implementation="eager",
    )
    bert = transformers.BertModel(config, add_pooling_layer=False).double().eval()
    mapped = {
        "embeddings.word_embeddings.weight": state["embed.weight"],
        "embeddings.position_embeddings.weight": state["encoder.positions.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(2, width, dtype=torch.float64),
        "embeddings.LayerNorm.weight": state["encoder.embed_norm.weight"],
        "embeddings.LayerNorm.bias": state["encoder.embed_norm.bias"],
    }
    for layer in range(LAYERS):
        for theirs, own in NAMES.items():
            for kind in ("weight", "bias"):
                mapped[f"encoder.layer.{layer}.{theirs}.{kind}"] = state[f"encoder.blocks.{layer}.{own}.{kind}"]
    bert.load_state_dict(mapped)
    return bert
