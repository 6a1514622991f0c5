"""The encoder-decoder equals torch.nn.Transformer in outputs and gradients, in float64, to 1e-12 relative."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from backends import use_backends
from bert import bert_of
from recipes import error, perturbed

EXACT = 1e-12
WIDTH, HEADS, HIDDEN, VOCAB, PAD = 12, 3, 20, 12, 0
STACK = {"self_attn.out_proj": "attention.out", "linear1": "ffn.up", "linear2": "ffn.down"}


def ours(residual: str, activation: str, final_norm: bool = True, encoder_layers: int = 2, **extra: Any) -> Any:
    values = {
        "vocab_size": VOCAB,
        "d_model": WIDTH,
        "n_layers": 2,
        "encoder_layers": encoder_layers,
        "context_length": 16,
        "positions": "none",
        "attention": {"part": "multihead", "n_heads": HEADS, "bias": True, "out_bias": True},
        "ffn": {"part": activation, "hidden": HIDDEN, "bias": True},
        "norm": "layernorm",
        "residual": {"part": residual, "final_norm": final_norm},
        "padding_idx": PAD,
        **extra,
    }
    model = perturbed(partwise.ModelConfig.from_dict(values))
    with torch.no_grad():  # so that logits equal the final hidden states
        model.head.weight.copy_(torch.eye(WIDTH))
    return model


def named(model: partwise.Transformer) -> dict[str, Tensor]:
    """Our weights by torch's names."""
    state, found = model.state_dict(), {}
    for stack, mine, norms in (
        ("encoder", "encoder.blocks", {"norm1": "attention", "norm2": "ffn"}),
        ("decoder", "blocks", {"norm1": "attention", "norm2": "cross", "norm3": "ffn"}),
    ):
        for layer in range(2):
            theirs, own = f"{stack}.layers.{layer}", f"{mine}.{layer}"
            if f"{own}.ffn.up.weight" not in state:
                continue
            pairs = dict(STACK)
            kinds = {"self_attn": "attention"}
            if stack == "decoder" and f"{own}.cross.q.weight" in state:
                pairs["multihead_attn.out_proj"], kinds["multihead_attn"] = "cross.out", "cross"
            for kind in ("weight", "bias"):
                for name, target in pairs.items():
                    found[f"{theirs}.{name}.{kind}"] = state[f"{own}.{target}.{kind}"]
                for name, target in kinds.items():
                    found[f"{theirs}.{name}.in_proj_{kind}"] = torch.cat(
                        [state[f"{own}.{target}.{r}.{kind}"] for r in "qkv"]
                    )
                for name, target in norms.items():
                    if f"{own}.residual.norms.{target}.{kind}" in state:
                        found[f"{theirs}.{name}.{kind}"] = state[f"{own}.residual.norms.{target}.{kind}"]
        for kind in ("weight", "bias"):
            name = f"{'encoder.' if stack == 'encoder' else ''}residual.norm.{kind}"
            if name in state:
                found[f"{stack}.norm.{kind}"] = state[name]
    return found


def theirs(residual: str, activation: str, final_norm: bool) -> nn.Transformer:
    options: dict[str, Any] = {
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": residual == "pre",
    }
    transformer = nn.Transformer(WIDTH, HEADS, 2, 2, **options).double().eval()
    if not final_norm:  # torch always adds a norm after both stacks
        transformer.encoder.norm = transformer.decoder.norm = None
    return transformer


SOURCE = torch.tensor([[3, 5, 7, 2, 9], [4, 1, 8, PAD, PAD], [6, PAD, PAD, PAD, PAD]])
TARGET = torch.tensor([[1, 4, 2, 8], [9, 3, 5, 7], [2, 2, 6, 1]])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_equals_torch_transformer(residual: str, activation: str, final_norm: bool, backend: str) -> None:
    model, other = ours(residual, activation, final_norm), theirs(residual, activation, final_norm)
    use_backends(model, backend)
    missing = other.load_state_dict(named(model), strict=True)
    assert not missing.missing_keys
    padding = SOURCE == PAD
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    table = model.embed.weight.detach().clone().requires_grad_()
    expected = other(
        table[SOURCE],
        table[TARGET],
        tgt_mask=mask,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
        tgt_is_causal=True,
    )
    found = model(TARGET, source=SOURCE)
    assert error(found, expected + model.head.bias if model.head.bias is not None else expected) <= EXACT
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    holder = ours(residual, activation, final_norm)
    for parameter, copied in zip(model.parameters(), holder.parameters(), strict=True):
        copied.data = parameter.grad
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in named(holder).items():
        assert (gradient - gradients[name]).abs().max() <= EXACT * largest, name
    rows = [row for row in range(VOCAB) if row != PAD]  # the padding embedding is not trained
    assert (model.embed.weight.grad[rows] - table.grad[rows]).abs().max() <= EXACT * table.grad.abs().max()
    assert not model.embed.weight.grad[PAD].any()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("residual", ["post", "pre"])
def test_decoder_equals_torch_encoder_with_a_causal_mask(residual: str, activation: str) -> None:
    """Our decoder without an encoder is torch's *encoder* with a causal mask."""
    model, other = ours(residual, activation, encoder_layers=0), theirs(residual, activation, True).encoder
    weights = {name.replace("decoder.", "", 1): tensor for name, tensor in named(model).items()}
    renamed = {name.replace("norm3", "norm2"): tensor for name, tensor in weights.items()}
    other.load_state_dict(renamed)
    expected = other(model.embed(TARGET), mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64))
    assert error(model(TARGET), expected) <= EXACT
    unmasked = other(model.embed(TARGET))
    assert error(unmasked, expected) > 0.01  # the mask has an effect


def test_cached_equals_uncached_with_a_padded_source() -> None:
    for positions in ("none", "sinusoidal", "learned"):
        model = ours("post", "relu", positions=positions)
        full = model(TARGET, source=SOURCE)
        for cuts in ([1, 2, 3], [2], [3], []):
            cache = model.new_cache(3, 4, source=SOURCE)
            pieces = [model(TARGET[:, a:b], cache) for a, b in zip([0, *cuts], [*cuts, 4], strict=True)]
            assert error(torch.cat(pieces, dim=1), full) <= EXACT
        cache = model.new_cache(3, 4, source=SOURCE)
        model(TARGET[:, :2], cache)
        cache.select(torch.tensor([2, 0, 0]))
        found = model(TARGET[[2, 0, 0], 2:], cache)
        assert error(found, full[[2, 0, 0], 2:]) <= EXACT


def test_source_padding_has_no_effect() -> None:
    for positions in ("sinusoidal", "learned", "rope"):
        model = ours("pre", "gelu", positions=positions)
        alone = model(TARGET[1:2], source=SOURCE[1:2, :3])
        assert error(model(TARGET, source=SOURCE)[1:2], alone) <= EXACT


def test_embeddings_are_tied() -> None:
    config = partwise.preset("original", "d_model=16", "n_layers=1", "encoder_layers=2", "attention.n_heads=4")
    model = partwise.Transformer(config)
    assert model.head.weight is model.embed.weight and model.encoder.embed.weight is model.embed.weight
    assert {"head.weight", "encoder.embed.weight"}.isdisjoint(model.state_dict())
    reloaded = partwise.Transformer(config, seed=1)
    reloaded.load_state_dict(model.state_dict(), assign=True)
    assert reloaded.head.weight is reloaded.embed.weight and reloaded.encoder.embed.weight is reloaded.embed.weight
    untied = partwise.Transformer(
        partwise.ModelConfig.from_dict({**config.to_dict(), "share_encoder_embeddings": False})
    )
    assert "encoder.embed.weight" in untied.state_dict()
    assert not torch.equal(untied.encoder.embed.weight, untied.embed.weight)


def test_parameters_of_the_base_model() -> None:
    """Vaswani et al. 2017, table 3: 65 million parameters with a shared vocabulary of about 37,000 pieces."""
    config = partwise.preset("original", vocab_size=37000)
    layer = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512
    attention = 4 * (512 * 512 + 512)
    norm = 2 * 512
    expected = 37000 * 512 + 6 * (layer + 2 * norm) + 6 * (layer + attention + 3 * norm)
    assert config.parameters() == expected
    assert expected / 1e6 == pytest.approx(63.1, abs=0.1)


def test_errors_of_missing_and_unexpected_sources() -> None:
    with pytest.raises(partwise.ConfigError, match="pass a source"):
        ours("post", "relu")(TARGET)
    with pytest.raises(partwise.ConfigError, match="set encoder_layers"):
        ours("post", "relu", encoder_layers=0)(TARGET, source=SOURCE)
    with pytest.raises(partwise.ConfigError, match="padding_idx=12 is not below vocab_size=12"):
        ours("post", "relu", padding_idx=12)


def test_the_embedding_of_padding_is_zero() -> None:
    config = partwise.preset("original", "d_model=16", "n_layers=1", "attention.n_heads=2", "vocab_size=11")
    settings = config.to_dict() | {"padding_idx": 3}
    weights = partwise.Transformer(partwise.ModelConfig.from_dict(settings)).state_dict()
    embeddings = {name: values for name, values in weights.items() if name.endswith("embed.weight")}
    assert embeddings
    for values in embeddings.values():
        assert not values[3].any()
        assert values[4].any()


def test_encoder_equals_the_hidden_states_of_bert() -> None:
    """`transformers`' BertModel on padded sources of one segment, whose embedding is part of the learned positions."""
    norm, learned = {"part": "layernorm", "eps": 1e-12}, {"positions": "learned", "embed_norm": True}
    model = ours("post", "gelu", final_norm=False, norm=norm, **learned)
    bert = bert_of(model, HEADS, HIDDEN, PAD)
    source = torch.tensor([[3, 5, 7, 2, 9, 4], [6, 1, 8, PAD, PAD, PAD]])
    memory, padding = model.encode(source, [])
    expected = bert(source, attention_mask=(source != PAD).long()).last_hidden_state
    assert memory is not None and padding is not None
    assert error(memory[~padding], expected[~padding]) <= EXACT
    changed = source.clone()
    changed[0, -1] = 10  # an encoder has no causal mask: the first position sees the last
    assert error(model.encode(changed, [])[0][0, 0], memory[0, 0]) > 1e-6
