"""The parts that encoder and decoder share, and the encoder."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from partwise.config import recipes_by_layer
from partwise.model.block import Block, run_blocks
from partwise.model.heads import check_heads
from partwise.model.options import ModelOptions
from partwise.parts.contracts import ForwardContext, LayerContext
from partwise.parts.dropout import Dropout
from partwise.parts.layers import embedding_table


class Stack(nn.Module):
    """The common part of encoder and decoder: embeddings, positions and blocks."""

    embed: nn.Embedding

    def build_stack(self, config: ModelOptions, layer_ctx: LayerContext) -> None:
        width = config.d_model
        fields = (config.short_conv, config.attention, config.ffn)
        recipes = [recipes_by_layer(field, layer_ctx.n_layers) for field in fields]
        layouts = [recipe.heads(width) for recipe in recipes[1]]
        first_layer_heads = layouts[0] if recipes[1][0].shares_first_values else None
        layer_ctx = replace(layer_ctx, heads=layouts[0], first_layer_heads=first_layer_heads)
        self.embedding_scale = width**0.5 if config.scale_embeddings else 1.0
        self.positions = config.positions.build(layer_ctx)
        self.lookup = config.ngram_embeddings.build(layer_ctx, config.vocab_size)
        self.embed_norm = config.norm.build(width) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.embed_dropout)
        check_heads(config.positions.name, self.positions, layouts)

        def new_norm() -> nn.Module:
            return config.norm.build(width)

        self.blocks = nn.ModuleList()
        for layer, (mixing, attention, ffn) in enumerate(zip(*recipes, strict=True)):
            scale = config.init.score_scale(attention.qk_head_dim(width), width)
            own_ctx = replace(layer_ctx, layer_index=layer, heads=layouts[layer], score_scale=scale)
            layers = {"mixing": mixing.build(own_ctx), "attention": attention.build(own_ctx)}
            if layer_ctx.causal and layer_ctx.other_layers:
                layers["cross"] = attention.build_cross(own_ctx)
            layers["ffn"] = ffn.build(own_ctx)
            branches = [name for name in layers if name != "mixing"]
            self.blocks.append(Block(layers, config.residual.build(own_ctx, branches, new_norm)))
        self.residual = config.residual.build_ends(layer_ctx, new_norm)

    def run_stack(self, tokens: Tensor, ctx: ForwardContext) -> Tensor:
        """(B, T) ids -> (B, T, D) final hidden states."""
        x = self.embed(tokens)
        x = self.lookup(x * self.embedding_scale if self.embedding_scale != 1.0 else x, tokens, ctx)
        x = self.residual.enter(self.dropout(self.embed_norm(self.positions.at_input(x, ctx.position_ids))))
        return self.residual.leave(run_blocks(self.blocks, x, ctx))


class Encoder(Stack):
    """A bidirectional stack: source ids (B, M) -> (B, M, D)."""

    def __init__(self, config: ModelOptions, embed: nn.Embedding | None) -> None:
        super().__init__()
        self.embed = embed or embedding_table(config.vocab_size, config.d_model, config.padding_idx)
        layer_ctx = LayerContext(
            config.d_model, config.encoder_layers, config.context_length, causal=False, other_layers=config.n_layers
        )
        self.build_stack(config, layer_ctx)

    def forward(self, source: Tensor, padding: Tensor | None, aux_losses: list[Tensor]) -> Tensor:
        position_ids = torch.arange(source.shape[1], device=source.device)
        document_ids = None if padding is None else -padding.long()  # padding and tokens do not attend to each other
        ctx = ForwardContext(
            self.positions, position_ids, causal=False, document_ids=document_ids, aux_losses=aux_losses
        )
        return self.run_stack(source, ctx)
