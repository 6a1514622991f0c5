"""Compiled blocks compute the same as their layers, and are used where the kernel supports all parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from backends import use_backends
from kernel_inputs import relative_error, require_kernels, threads
from partwise.kernels.block import BlockOptions, decode, forward_blocks, prefill
from partwise.train.config import run_config
from partwise.train.loop import Run

KERNEL = "partwise.compute.backends.block.kernel"
each_autocast = pytest.mark.parametrize("autocast", [False, True])


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


DROPOUT = [f"{site}dropout=0.2" for site in ("embed_", "attention.", "residual.", "ffn.hidden_", "ffn.output_")]
GROUPED = ["attention.n_heads=8", "attention.n_kv_heads=4", "attention.head_dim=6"]
SUPPORTED = {
    "gpt": [],
    "llama": ["norm=rmsnorm", "ffn=swiglu", "ffn.hidden=64", "positions=rope", "attention.n_kv_heads=2"],
    "partial rotary": ["positions=rope", "positions.partial_rotary_factor=0.5"],
    "interleaved": ["positions=rope", "positions.layout=interleaved"],
    "sinusoidal": ["positions=sinusoidal"],
    "no positions": ["positions=none"],
    "biases": ["attention.bias=true", "attention.out_bias=true", "ffn.bias=true", "norm=rmsnorm", "norm.bias=true"],
    "no affine norm": ["norm.affine=false", "ffn=relu2"],
    "embedding dropout": ["embed_dropout=0.1"],
    "attention scale": ["attention.scale=0.5", "ffn=geglu", "ffn.hidden=48"],
    "qk_norm of heads": ["attention.qk_norm=head", "positions=rope", "attention.n_kv_heads=2"],
    "qk_norm of all heads": ["attention.qk_norm=full", "attention.qk_norm_eps=0.01", "attention.bias=true"],
    "qk_norm without weights": ["attention.qk_norm=head", "attention.qk_norm_affine=false", "attention.n_heads=2"],
    "attention dropout": ["attention.dropout=0.2", *GROUPED],
    "residual dropout": ["residual.dropout=0.1"],
    "hidden dropout": ["ffn.hidden_dropout=0.3", "ffn=swiglu", "ffn.hidden=48"],
    "dropout": [*DROPOUT, "positions=rope", "attention.qk_norm=head", "attention.out_bias=true", "ffn.bias=true"],
}
WITHOUT_CACHE = {
    "token shift": ["short_conv=token_shift"],
    "all options": [
        *DROPOUT,
        *GROUPED,
        "short_conv=token_shift",
        "attention.qk_norm=full",
        "positions=rope",
        "ffn=reglu",
    ],
    "token shift and qk_norm": ["short_conv=token_shift", "attention.qk_norm=head", "norm=rmsnorm", "positions=rope"],
}
UNSUPPORTED = {
    "window": ["attention.window=4"],
    "softcap": ["attention.softcap=20"],
    "sinks": ["attention.sinks=true"],
    "gate": ["attention.gate=head"],
    "value residual": ["attention.value_residual=true"],
    "separate q, k, v": ["attention.fused_qkv=false"],
    "alibi": ["positions=alibi"],
    "post-norm": ["residual=post"],
    "parallel": ["residual=parallel"],
    "short convolution": ["short_conv=conv"],
    "elu": ["ffn=elu"],
    "scalenorm": ["norm=scalenorm"],
    "odd widths": ["ffn.hidden=50"],
}


def build(words: list[str], block_backend: str) -> partwise.Transformer:
    shape = ("d_model=32", "n_layers=2", "attention.n_heads=4", "context_length=40", "ffn.hidden=64")
    model = partwise.Transformer(partwise.preset("mingpt", *shape, *words, vocab_size=30))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    use_backends(model, "eager", "eager", block_backend)
    return model.train()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch size of each compiled block's forward pass, except in decoding."""
    batch_sizes: list[int] = []

    def recorded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(x: Tensor, weights: Any, *rest: Any) -> Tensor:
            batch_sizes.extend([x.shape[0]] * len(weights))
            return function(x, weights, *rest)

        return call

    monkeypatch.setattr(f"{KERNEL}.forward_blocks", recorded(forward_blocks))
    monkeypatch.setattr(f"{KERNEL}.prefill", recorded(prefill))
    return batch_sizes


@pytest.mark.parametrize("words", (SUPPORTED | WITHOUT_CACHE).values(), ids=SUPPORTED | WITHOUT_CACHE)
def test_supported_models_compute_the_same(words: list[str], calls: list[int]) -> None:
    tokens = torch.randint(30, (3, 21), generator=torch.Generator().manual_seed(1))
    results = []
    for backend in ("eager", "cpp"):
        model = build(words, backend)
        model.seed_dropout(0, 0)
        logits = model(tokens)
        logits.square().mean().backward()
        results.append([logits.detach(), *(each.grad for each in model.parameters() if each.grad is not None)])
    assert calls == [3, 3]
    eager, cpp = results
    size = max(float(x.norm() / x.numel() ** 0.5) for x in eager[1:])
    for x, y in zip(cpp, eager, strict=True):  # both are float32
        assert float((x - y).norm()) <= 2e-5 * max(float(y.norm()), 1e-2 * size * y.numel() ** 0.5)


@pytest.mark.parametrize("words", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_models_call_their_layers(words: list[str], calls: list[int]) -> None:
    build(words, "cpp")(torch.randint(30, (3, 21)))
    assert calls == []


def test_evaluation_has_no_dropout(calls: list[int]) -> None:
    model, tokens = build(DROPOUT, "cpp"), torch.randint(30, (3, 21))
    first, second = model(tokens), model(tokens)  # not seeded: different noise in each pass
    assert calls == [3] * 4 and not torch.equal(first, second)
    plain = build([], "cpp").eval()
    assert torch.equal(model.eval()(tokens), plain(tokens))


def test_dropout_with_a_cache_calls_the_layers(calls: list[int]) -> None:
    model = build(DROPOUT, "cpp")
    with torch.inference_mode():
        model(torch.randint(30, (3, 21)), model.new_cache(3))
    assert calls == []


def test_micro_batches_have_the_gradients_of_the_batch() -> None:
    model, tokens = build(DROPOUT, "cpp"), torch.randint(30, (6, 21), generator=torch.Generator().manual_seed(1))
    gradients = []
    for sizes in ([6], [2, 4]):
        first_row = 0
        for rows in tokens.split(sizes):
            model.seed_dropout(0, 0, first_row)
            model(rows).square().mean(dim=(1, 2)).sum().backward()
            first_row += len(rows)
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
        model.zero_grad(set_to_none=True)
    assert relative_error(gradients[1], gradients[0].double()) <= 1e-5


def test_consecutive_equal_blocks_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks with one activation, two with another, and a third with a hook."""
    n_blocks: list[int] = []
    monkeypatch.setattr(
        f"{KERNEL}.forward_blocks", lambda x, w, *rest: (n_blocks.append(len(w)), forward_blocks(x, w, *rest))[1]
    )
    words = ["n_layers=6", "ffn=[gelu,gelu,gelu,relu,relu,relu]", "residual.dropout=0.1"]
    model, tokens = build(words, "cpp"), torch.randint(30, (3, 21))
    eager = build(words, "eager")
    for each in (model, eager):
        each.seed_dropout(0, 0)
    outputs: list[Tensor] = []
    model.blocks[5].register_forward_hook(lambda block, args, output: outputs.append(output))
    compiled = model(tokens).detach()
    assert n_blocks == [3, 2, 1] and len(outputs) == 1
    assert relative_error(compiled, eager(tokens).detach()) <= 2e-5


def test_blocks_with_a_token_shift_call_their_layers_with_a_cache(calls: list[int]) -> None:
    model, tokens = build(["short_conv=token_shift"], "cpp").eval(), torch.randint(30, (37, 9))
    with torch.inference_mode():
        expected = model(tokens)
        assert calls == [37, 37]
        cache = model.new_cache(37)
        parts = [model(tokens[:, :5], cache), *(model(tokens[:, i : i + 1], cache) for i in range(5, 9))]
    assert calls == [37, 37]
    assert relative_error(torch.cat(parts, 1), expected.double()) <= 1e-5


def test_unsupported_forward_passes_call_the_layers(calls: list[int]) -> None:
    model, tokens = build([], "cpp"), torch.randint(30, (3, 21))
    model(tokens, model.new_cache(3))  # a cache, with gradients
    model(tokens, document_ids=torch.zeros_like(tokens))
    ffn: Any = model.blocks[0].ffn
    for register in (ffn.register_forward_hook, ffn.register_full_backward_hook):
        handle = register(lambda *_: None)
        model(tokens)
        assert calls == [3]  # the second block, whose layers have no hooks
        handle.remove()
        calls.clear()
    model(tokens)
    model.double()(tokens)
    assert calls == [3, 3]


@each_autocast
@pytest.mark.parametrize("name", ["gpt", "llama", "interleaved", "partial rotary"])
def test_prefill_equals_one_pass(name: str, autocast: bool, calls: list[int]) -> None:
    """Single tokens that then attend to the cache give the same logits, too."""
    model, tokens = build(SUPPORTED[name], "cpp").eval(), torch.randint(30, (3, 21))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = model(tokens)
        cache = model.new_cache(3)
        parts = [model(tokens[:, :15], cache)]
        parts += [model(tokens[:, i : i + 1], cache) for i in range(15, 21)]
    assert calls == [3, 3, 3, 3]  # single tokens of a few rows call the layers
    assert relative_error(torch.cat(parts, 1), expected.double()) <= (2e-2 if autocast else 1e-5)


@each_autocast
@pytest.mark.parametrize("name", SUPPORTED)
def test_decoding_equals_one_pass(name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single tokens and three at a time give the same logits, bitwise equal for any number of threads."""
    calls: list[tuple[int, int]] = []

    def recorded(x: Tensor, weights: Any, spec: BlockOptions, caches: Any, past: int) -> Tensor:
        calls.append((len(weights), past))
        return decode(x, weights, spec, caches, past)

    monkeypatch.setattr(f"{KERNEL}.decode", recorded)
    model, tokens = build(SUPPORTED[name], "cpp").eval(), torch.randint(30, (37, 21))
    results = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected = model(tokens)
        for number in (1, 2, 3):
            with threads(number):
                cache = model.new_cache(37, 30)
                parts = [model(tokens[:, :7], cache)]
                parts += [model(tokens[:, i : i + 1], cache) for i in range(7, 15)]
                parts += [model(tokens[:, i : i + 3], cache) for i in range(15, 21, 3)]
                results.append(torch.cat(parts, 1))
    assert calls == 3 * [(2, past) for past in (*range(7, 15), 15, 18)]
    assert cache.length == 21 and all(layer.length == 21 for layer in cache.layers)  # type: ignore[attr-defined]
    assert all(torch.equal(each, results[0]) for each in results)
    assert relative_error(results[0], expected.double()) <= (2e-2 if autocast else 1e-5)


def test_unsupported_decoding_calls_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, many new tokens, a window, a float64 model, and a cache that is not contiguous."""
    calls: list[int] = []
    monkeypatch.setattr(f"{KERNEL}.decode", lambda *args: (calls.append(args[-1]), decode(*args))[1])
    model, tokens = build([], "cpp").eval(), torch.randint(30, (40, 21))
    windowed = build(["attention.window=4"], "cpp").eval()

    def decode_after_prefill(
        rows: int, n_tokens: int, model: partwise.Transformer = model, change_buffer: Any = None
    ) -> None:
        cache = model.new_cache(rows)
        model(tokens[:rows, :5], cache)
        if change_buffer:
            for layer in cache.layers:
                layer.buffers = [change_buffer(buffer) for buffer in layer.buffers]  # type: ignore[attr-defined]
        model(tokens[:rows, 5 : 5 + n_tokens], cache)

    with torch.inference_mode():
        decode_after_prefill(3, 1)
        decode_after_prefill(40, 8)
        decode_after_prefill(40, 1, windowed)
        decode_after_prefill(40, 1, model.double())
        model.float()
        decode_after_prefill(40, 1, change_buffer=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
        assert calls == []
        decode_after_prefill(40, 1)
        assert calls == [5]


def test_a_cache_for_fewer_rows_is_refused() -> None:
    """The layers refuse it, too; nothing is written beyond its end."""
    model, tokens = build([], "cpp").eval(), torch.randint(30, (64, 6))
    with torch.inference_mode():
        cache = model.new_cache(40)
        model(tokens[:40, :5], cache)
        with pytest.raises(RuntimeError):
            model(tokens[:, 5:], cache)


def test_replaced_layers_and_patched_forwards_are_called(calls: list[int]) -> None:
    model, tokens = build([], "cpp"), torch.randint(30, (3, 21))
    block: Any = model.blocks[0]
    real, patched_calls = block.forward, list[int]()
    block.forward = lambda *args: (patched_calls.append(1), real(*args))[1]
    model(tokens)
    assert patched_calls == [1] and calls == [3, 3]  # compiled, each block on its own
    del block.forward
    calls.clear()
    block.ffn = torch.nn.Identity()
    block.ffn.forward = lambda x, ctx=None: torch.zeros_like(x)
    with torch.no_grad():
        other = model(tokens)
        assert calls == [3]
        block.ffn = build([], "cpp").blocks[0].ffn  # type: ignore[union-attr]
    assert not torch.equal(other, model(tokens))
    model.blocks[1].ffn.bfloat16()  # type: ignore[union-attr, operator]
    calls.clear()
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens)
    assert calls == []


def test_selected_rows_of_a_cache_are_continued() -> None:
    """Rows dropped, duplicated and truncated, as in beam search."""
    model, tokens = build(SUPPORTED["llama"], "cpp").eval(), torch.randint(30, (40, 12))
    rows = torch.arange(40).flip(0) // 2
    with torch.inference_mode():
        cache = model.new_cache(40)
        model(tokens[:, :6], cache)
        model(tokens[:, 6:7], cache)
        cache.select(rows)
        cache.truncate(6)
        parts = [model(tokens[rows, i : i + 1], cache) for i in range(6, 12)]
        expected = model(tokens[rows])[:, 6:]
    assert relative_error(torch.cat(parts, 1), expected.double()) <= 1e-5


def test_prefill_in_several_calls_equals_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = build([], "cpp").eval(), torch.randint(30, (7, 21))
    with torch.inference_mode():
        cache = model.new_cache(7)
        expected = model(tokens, cache)
        monkeypatch.setattr("partwise.kernels.block.PREFILL_TOKENS", 50)
        other = model.new_cache(7)
        assert torch.equal(model(tokens, other), expected)
        next_logits = [model(tokens[:, :1], each) for each in (cache, other)]
    assert torch.equal(*next_logits)


def test_rotary_tables_of_inference_mode_may_be_used_in_training(calls: list[int]) -> None:
    model, tokens = build(SUPPORTED["llama"], "cpp"), torch.randint(30, (3, 21))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert calls == [3] * 4 and all(each.grad is not None for each in model.blocks.parameters())


def test_empty_batches_and_sequences(calls: list[int]) -> None:
    model = build([], "cpp")
    use_backends(model, "sdpa", "eager", "cpp")
    assert model(torch.zeros(4, 0, dtype=torch.long)).shape == (4, 0, 30)
    assert model(torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4, 30)
    assert calls == []


def test_float16_autocast_calls_the_layers(calls: list[int]) -> None:
    with torch.autocast("cpu", torch.float16):
        build([], "cpp")(torch.randint(30, (3, 21)))
    assert calls == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_losses_equal_those_of_the_layers(precision: str) -> None:
    """The losses are equal up to rounding."""
    words = ["d_model=32", "n_layers=2", "attention.n_heads=2", "ffn=swiglu", "ffn.hidden=64", "train.device=cpu"]
    data = ["data=arithmetic", "data.validation=10", "data.test=10", "train.steps=30", "train.lr=3e-3"]
    losses = []
    for backend in ("eager", "cpp"):
        config = run_config("mingpt", *words, *data, f"train.precision={precision}", f"train.block_backend={backend}")
        losses.append([step.loss for step in Run(config).steps()])
    differences = [abs(x - y) for x, y in zip(*losses, strict=True)]
    assert max(differences) <= (2e-4 if precision == "float32" else 3e-2)
    assert losses[1][-1] < losses[1][0] - 0.5
