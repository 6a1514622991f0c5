"""The operations of a model, with the specs from which backends are chosen."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from partwise.config import recipes_by_layer
from partwise.model.block import Block
from partwise.model.stack import Stack
from partwise.model.transformer import ModelConfig, Transformer
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.multihead import ValueResidual
from partwise.parts.contracts import AttentionLayer, PositionLayer, StackEnds
from partwise.parts.feed_forward.mlp import MLPBase
from partwise.parts.ngram_embeddings import IdentityNGramEmbeddings
from partwise.parts.ngram_lm import IdentityNGramLM
from partwise.parts.operations import (
    AttentionSpec,
    BlockSpec,
    EndsSpec,
    MaskKind,
    ModelSpec,
    OpaqueSpec,
    OperationSpec,
    PositionsSpec,
    norm_spec,
    spec_of,
)
from partwise.parts.residual.wirings import FinalNorm
from partwise.parts.short_conv import IdentityShortConv


class ModelOperation(NamedTuple):
    """A layer that backends may compute."""

    name: str  # of the module
    kind: str  # block, attention or ffn
    module: nn.Module
    spec: OperationSpec


def operations(model: Transformer, n_tokens: int | None = None) -> Iterator[ModelOperation]:
    """All operations of training on rows of `n_tokens` (default: context_length), each block before its layers.

    A layer of a kind that holds no operation is one itself, with an OpaqueSpec.
    """
    n_tokens = n_tokens or model.config.context_length
    for path, stack in stacks(model):
        specs = block_specs(model.config, stack, n_tokens)
        for index, (block, block_spec) in enumerate(zip(stack.blocks, specs, strict=True)):
            name = f"{path}blocks.{index}"
            yield ModelOperation(name, "block", block, block_spec)
            for layer, kind in (("attention", "attention"), ("cross", "attention"), ("ffn", "ffn")):
                module = getattr(block, layer)
                if module is None:
                    continue
                found = False
                for inner, each in module.named_modules(prefix=f"{name}.{layer}"):
                    if isinstance(each, AttentionCore):
                        spec: OperationSpec = core_spec(model.config, stack, module, each, n_tokens)
                    elif isinstance(each, MLPBase):
                        spec = spec_of(each, option_name(model.config, stack, kind, index))
                    else:
                        continue
                    found = True
                    yield ModelOperation(inner, kind, each, spec)
                if not found:
                    yield ModelOperation(f"{name}.{layer}", kind, module, opaque(model.config, stack, kind, index))


def stacks(model: Transformer) -> Iterator[tuple[str, Stack]]:
    if not model.config.encoder_only:
        yield "", model
    if model.encoder is not None:
        yield "encoder.", model.encoder


def is_causal(stack: Stack) -> bool:
    return isinstance(stack, Transformer)


def option_name(config: ModelConfig, stack: Stack, family: str, index: int) -> str:
    """The option that chose a layer, as in `ffn=swiglu`."""
    return f"{family}={recipes_by_layer(getattr(config, family), len(stack.blocks))[index].name}"


def opaque(config: ModelConfig, stack: Stack, family: str, index: int) -> OpaqueSpec:
    return OpaqueSpec(option=option_name(config, stack, family, index))


def core_spec(
    config: ModelConfig, stack: Stack, layer: nn.Module, core: AttentionCore, n_tokens: int
) -> AttentionSpec | OpaqueSpec:
    """The spec of an attention core of self-attention, or of cross-attention."""
    if type(core) is not AttentionCore:
        return OpaqueSpec(option=type(core).__name__)
    padded = config.padding_idx is not None
    biased = type(stack.positions).on_scores is not PositionLayer.on_scores
    plain: MaskKind = "causal" if is_causal(stack) else "bias" if padded else "full"
    if any(layer is block.cross for block in stack.blocks):
        return core.spec("bias" if padded else "full")
    plain = "bias" if biased else plain
    return core.spec(layer.mask_kind(plain, n_tokens) if isinstance(layer, AttentionLayer) else plain)


def block_specs(config: ModelConfig, stack: Stack, n_tokens: int) -> tuple[BlockSpec, ...]:
    """The specs of all blocks of a stack."""
    shares_values = any(isinstance(module, ValueResidual) for module in stack.blocks.modules())
    return tuple(block_spec(config, stack, index, n_tokens, shares_values) for index in range(len(stack.blocks)))


def block_spec(config: ModelConfig, stack: Stack, index: int, n_tokens: int, shares_values: bool) -> BlockSpec:
    block = stack.blocks[index]
    assert isinstance(block, Block)
    attention: OperationSpec = opaque(config, stack, "attention", index)
    core = getattr(block.attention, "scores", None)
    if isinstance(core, AttentionCore):
        core = core_spec(config, stack, block.attention, core, n_tokens)
        attention = spec_of(block.attention, option_name(config, stack, "attention", index), core)
    return BlockSpec(
        attention=attention,
        ffn=spec_of(block.ffn, option_name(config, stack, "ffn", index)),
        residual=spec_of(block.residual, f"residual={config.residual.name}", f"norm={config.norm.name}"),
        positions=positions_spec(stack.positions, f"positions={config.positions.name}"),
        causal=is_causal(stack),
        short_conv=None
        if type(block.mixing) is IdentityShortConv
        else spec_of(block.mixing, option_name(config, stack, "short_conv", index)),
        cross_attention=None if block.cross is None else OpaqueSpec(option="cross-attention"),
        shares_values=shares_values,
    )


def positions_spec(layer: PositionLayer, option: str) -> OperationSpec:
    """Layers that only change the input of a stack compute nothing within blocks, so they need no spec of their own."""
    if "spec" in vars(type(layer)):
        return spec_of(layer, option)
    in_blocks = [
        name for name in vars(PositionLayer) if not name.startswith("_") and name not in ("at_input", "forward")
    ]
    overridden = any(getattr(type(layer), name) != getattr(PositionLayer, name) for name in in_blocks)
    return OpaqueSpec(option=option) if overridden else PositionsSpec()


def model_spec(model: Transformer) -> ModelSpec:
    """The spec of a whole model in generation."""
    config = model.config
    ends: OperationSpec = OpaqueSpec(option=f"residual={config.residual.name}")
    if type(model.residual) in (StackEnds, FinalNorm):
        norm = model.residual.norm if isinstance(model.residual, FinalNorm) else nn.Identity()
        ends = EndsSpec(final_norm=norm_spec(norm, f"norm={config.norm.name}"))
    lookup, counts = type(model.lookup) is IdentityNGramEmbeddings, type(model.counts) is IdentityNGramLM
    return ModelSpec(
        blocks=block_specs(config, model, config.context_length),
        ends=ends,
        scale_embeddings=config.scale_embeddings,
        embed_norm=config.embed_norm,
        head_bias=config.head_bias,
        logit_softcap=config.logit_softcap,
        ngram_embeddings=None if lookup else OpaqueSpec(option=f"ngram_embeddings={config.ngram_embeddings.name}"),
        ngram_lm=None if counts else OpaqueSpec(option=f"ngram_lm={config.ngram_lm.name}"),
        encoder_layers=config.encoder_layers,
    )
