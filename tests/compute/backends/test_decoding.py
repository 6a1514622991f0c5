"""The decoding kernel equals the model in float64, for every model that it supports."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from kernel_inputs import threads
from partwise import ConfigError
from partwise.cli import main
from partwise.cli.commands.doctor import generation_backend
from partwise.compute.backends import decoding
from partwise.compute.backends.decoding import Decoder, unsupported_layer, unsupported_reason
from partwise.compute.bf16_emulation import emulate_bf16
from partwise.config import REGISTRY
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import decode, decoding_model, generate
from partwise.generation.sampling import Sampling
from partwise.kernels import decoding_weights
from partwise.model import ModelConfig, Transformer
from partwise.parts.feed_forward.mlp import OTHER
from partwise.parts.short_conv import TokenShiftLayer
from partwise.tokenizers import CharacterTokenizer
from recipes import configs, error, perturbed, recipes

FLOAT_ERROR = 1e-5  # relative to the largest logit
POSITIONS = ["none", "learned", "sinusoidal", *(name for name in REGISTRY["positions"] if name.startswith("rope"))]
FFN = [
    name for name, kind in REGISTRY["ffn"].items() if hasattr(kind, "activation") and kind().activation().name != OTHER
]
ALPHABET = "abcdefghij\n"
slow_examples: dict[str, Any] = {
    "suppress_health_check": [HealthCheck.too_slow],
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],  # shrinking takes minutes
}


@pytest.fixture(scope="module", autouse=True)
def kernel(shared_cache: Path) -> None:
    if decoding_weights.library() is None:
        pytest.skip("no C++ compiler")


@st.composite
def supported_configs(draw: DrawFn) -> ModelConfig:
    """A small random decoder of supported parts, with a context of several SIMD vectors."""
    ffn = draw(recipes("ffn", draw(st.sampled_from(FFN))))
    ffn |= {key: value for key, value in (("beta", 1.0), ("trainable_beta", False)) if key in ffn}
    booleans = {each: draw(st.booleans()) for each in ("tie_embeddings", "head_bias", "scale_embeddings", "embed_norm")}

    def attention() -> dict[str, Any]:
        window = draw(st.none() | st.integers(2, 40))
        options = draw(recipes("attention", "multihead"))
        required = {"gate": "none", "value_residual": False, "n_heads": n_heads, "head_dim": head_dim}
        return options | required | {"window": window}

    n_heads, head_dim = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([2, 4, 6, 18, 64, 66]))
    values = {
        "vocab_size": draw(st.integers(1, 70)),
        "d_model": draw(st.integers(2, 40)),
        "n_layers": 2,
        "context_length": 60,
        "positions": draw(recipes("positions", draw(st.sampled_from(POSITIONS)))),
        "attention": [attention(), attention()],
        "ffn": ffn | {"hidden": draw(st.integers(1, 80))},
        "norm": draw(recipes("norm", draw(st.sampled_from(["layernorm", "rmsnorm", "none"])))),
        "residual": draw(recipes("residual", "pre")),
        "short_conv": [draw(st.sampled_from(["none", "token_shift"])) for _ in range(2)],
        "logit_softcap": draw(st.none() | st.floats(1, 30)),
    }
    try:
        return ModelConfig.from_dict(values | booleans)
    except ConfigError:
        reject()


def random_tokens(config: ModelConfig, rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def check_float32(logits: Tensor, model: Transformer, exact: Transformer, tokens: Tensor) -> None:
    """The error is FLOAT_ERROR, or a few times that of the eager model in float32 if the model magnifies rounding."""
    expected = exact(tokens)[:, -1:]
    eager_error = error(model(tokens)[:, -1:].double(), expected)
    assert error(logits.double(), expected) <= FLOAT_ERROR + 4 * eager_error


def check_bf16(logits: Tensor, model: Transformer, exact: Transformer, tokens: Tensor) -> None:
    """The error is a few times the effect of rounding activations: a sum whose last bit differs may round the other way.

    `test_bfloat16_matmuls_are_exact` is the sharp test.
    """
    expected, unrounded = exact(tokens), copy.deepcopy(exact)
    for module in unrounded.modules():
        module._forward_pre_hooks.clear()
    assert error(logits.double(), expected[:, -1:]) <= FLOAT_ERROR + 4 * error(unrounded(tokens), expected)


@pytest.mark.parametrize("bf16", [False, True])
@settings(max_examples=15, **slow_examples)
@given(config=supported_configs(), data=st.data())
@torch.no_grad()
def test_cached_steps_equal_the_model(bf16: bool, config: ModelConfig, data: st.DataObject) -> None:
    """Chunks have any length; rows are selected and the cache is truncated in between."""
    model = perturbed(config, data.draw(st.integers(0, 99))).float()
    model = emulate_bf16(model) if bf16 else model
    exact = copy.deepcopy(model).double()
    rows, length = data.draw(st.integers(1, 14)), data.draw(st.integers(1, config.context_length))
    tokens = random_tokens(config, rows, length)
    decoder, check = Decoder(model, bf16), check_bf16 if bf16 else check_float32
    cache = decoder.new_cache(rows, length)
    ends = sorted({*data.draw(st.lists(st.integers(1, length), max_size=4)), length})
    select_at = data.draw(st.sampled_from(ends))
    for end in ends:
        check(decoder(tokens[:, cache.length : end], cache), model, exact, tokens[:, :end])
        if end == select_at:
            selected = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5)))
            cache.select(selected)
            tokens = tokens[selected]
    end = data.draw(st.integers(0, length - 1))
    if end and any(isinstance(block.mixing, TokenShiftLayer) for block in model.blocks):
        with pytest.raises(
            ConfigError, match=f"cannot truncate the cache to length {end}: it keeps only the last inputs"
        ):
            cache.truncate(end)
        end = 0
    cache.truncate(end)
    other = torch.cat((tokens[:, : cache.length], (tokens[:, cache.length :] + 1) % config.vocab_size), dim=1)
    check(decoder(other[:, cache.length :], cache), model, exact, other)


@settings(max_examples=20, **slow_examples)
@given(config=configs())
@torch.no_grad()
def test_every_model_is_computed_correctly_or_refused_with_a_reason(config: ModelConfig) -> None:
    model = perturbed(config).float()
    reason = unsupported_reason(model)
    assert (reason is None) == (unsupported_layer(model) is None)
    if reason is None:
        tokens = random_tokens(config, 2, config.context_length)
        logits = Decoder(model)(tokens, Decoder(model).new_cache(2))
        check_float32(logits, model, copy.deepcopy(model).double(), tokens)
    else:
        with pytest.raises(ConfigError, match="backend=cpp does not support this model: ") as caught:
            decoding_model(model, backend="cpp")
        assert len(str(caught.value).splitlines()) == 1 and reason in str(caught.value)
        assert decoding_model(model) is model


@settings(max_examples=30, **slow_examples)
@given(
    *[st.integers(1, 70)] * 2, st.sampled_from(["relu", "reglu"]), st.integers(1, 40), st.just(1) | st.integers(1, 20)
)
def test_bfloat16_matmuls_are_exact(d_model: int, hidden: int, ffn: str, rows: int, length: int) -> None:
    check_exact_matmuls(d_model, hidden, ffn, rows, length)


@torch.no_grad()
def check_exact_matmuls(d_model: int, hidden: int, ffn: str, rows: int, length: int) -> None:
    """Results are bitwise equal for integers of more than eight bits, which bfloat16 rounds but float32 sums exactly."""
    sizes = {"d_model": d_model, "vocab_size": 50, "n_layers": 1, "context_length": 20}
    layers: dict[str, Any] = {"attention": {"part": "multihead", "n_heads": 1}, "ffn": {"part": ffn, "hidden": hidden}}
    no_norms = {"positions": "learned", "norm": "none", "residual": {"part": "pre", "final_norm": False}}
    model = Transformer(ModelConfig.from_dict({**sizes, **layers, **no_norms}))
    largest = 600 if ffn == "relu" else 40  # the gate squares it
    for key, parameter in model.named_parameters():
        limit = largest if "embed" in key or "positions" in key else 1
        generator = torch.Generator().manual_seed(hidden)
        parameter.copy_(torch.randint(-limit, limit + 1, parameter.shape, generator=generator))
    permutation = torch.eye(d_model)[torch.randperm(d_model, generator=torch.Generator().manual_seed(hidden))]
    # with a single position the softmax weight is exactly 1
    model.blocks[0].attention.out.weight.copy_(-permutation if length == 1 else 0 * permutation)
    tokens = random_tokens(model.config, rows, length)
    decoder = Decoder(emulate_bf16(model), bf16=True)
    assert torch.equal(decoder(tokens, decoder.new_cache(rows)), emulate_bf16(model)(tokens)[:, -1:])


def test_the_exact_test_detects_missing_rounding() -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr("partwise.compute.bf16_emulation.round_input", lambda layer, inputs: None)
        check_exact_matmuls(60, 60, "relu", 4, 4)


def small_model(**parts: Any) -> Transformer:
    sizes = {"vocab_size": len(ALPHABET), "d_model": 24, "n_layers": 2, "context_length": 20}
    return perturbed(ModelConfig.from_dict({**sizes, **parts})).float()


@torch.no_grad()
def test_selected_rows_keep_what_they_have_read() -> None:
    model = small_model(short_conv="token_shift")
    decoder, tokens, rows = Decoder(model), random_tokens(model.config, 3, 6), torch.tensor([2, 0])
    cache = decoder.new_cache(3)
    decoder(tokens[:, :5], cache)
    cache.select(rows)
    assert error(decoder(tokens[rows, 5:], cache), decoder(tokens[rows], decoder.new_cache(2))) <= FLOAT_ERROR


@torch.no_grad()
def test_a_row_does_not_depend_on_other_rows_or_the_number_of_threads() -> None:
    model = small_model(attention={"part": "multihead", "n_heads": 6, "n_kv_heads": 2}, short_conv="token_shift")
    decoder, tokens = Decoder(model, bf16=True), random_tokens(model.config, 29, 20)
    expected = torch.cat([decoder(row[None], decoder.new_cache(1)) for row in tokens])
    for number in (1, 2, 3):
        with threads(number):
            cache = decoder.new_cache(29)
            first = decoder(tokens[:, :7], cache)
            assert not torch.equal(first, expected)
            for column in range(7, 20):
                last = decoder(tokens[:, column : column + 1], cache)
            assert torch.equal(last, expected)


CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "windows": {"attention": {"part": "multihead", "n_heads": 4, "n_kv_heads": 1, "window": 5}},
    "gpt2": {"positions": "learned", "norm": "layernorm", "ffn": {"part": "gelu", "bias": True}, "head_bias": True},
    "token shift": {"short_conv": "token_shift"},
    "sinks": {"attention": {"part": "multihead", "n_heads": 2, "sinks": True, "softcap": 5.0, "qk_norm": "full"}},
}


@pytest.mark.parametrize("parts", CASES.values(), ids=CASES)
def test_generated_texts_equal_those_of_the_model(parts: dict[str, Any]) -> None:
    """Shorter and longer than context_length, sampled and greedy, with a stop string and beam search."""
    model, characters = small_model(**parts), CharacterTokenizer(ALPHABET)
    with torch.no_grad():
        model.head.weight.mul_(4)  # margins far above rounding errors
    prompts = ["a", "abc", "abcdefghij\nabcdefghi", "abcdefghij\nabcdefghij\nabc"]
    sampling: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 4, "precision": "bfloat16"},
        {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "stop": "e"},
        {"num_beams": 3},
    ]
    for options in sampling:
        chosen = [prompt for prompt in prompts if "num_beams" not in options or len(prompt) < 15]
        texts = [
            generate(model, characters, chosen, max_new_tokens=16, backend=backend, **options)
            for backend in ("eager", "auto")
        ]
        assert texts[0] == texts[1], options


def test_auto_and_cpp_use_the_kernel_and_eager_does_not() -> None:
    model = small_model()
    assert isinstance(decoding_model(model), Decoder) and isinstance(decoding_model(model, backend="cpp"), Decoder)
    assert decoding_model(model, backend="eager") is model
    other = decoding_model(model, "bfloat16", "eager")
    assert isinstance(other, Transformer) and other is not model
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name].bfloat16().float())


def test_a_prompt_is_one_step_and_each_token_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step grows with the length of the text."""
    model, shapes = small_model(), list[tuple[int, ...]]()
    decoder, real = Decoder(model), Decoder.step

    def recorded(self: Decoder, tokens: Tensor, *args: Any, **options: Any) -> Tensor:
        shapes.append(tuple(tokens.shape))
        return real(self, tokens, *args, **options)

    monkeypatch.setattr(Decoder, "step", recorded)
    prompts = random_tokens(model.config, 3, 9)
    list(decode(decoder, prompts, torch.zeros(3, 6), Sampling(0.0)))
    assert shapes == [(3, 9), *[(3, 1)] * 5]


def test_prompts_with_a_common_prefix_sample_the_same_tokens() -> None:
    model = small_model()
    tokens = torch.cat([torch.arange(8).expand(4, -1), torch.arange(4)[:, None]], dim=1)
    uniform = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampled = [torch.stack(list(decode(each, tokens, uniform, Sampling()))) for each in (model, Decoder(model))]
    assert torch.equal(*sampled)
    assert len({tuple(row) for row in sampled[0].T.tolist()}) > 1


def test_beam_search_gives_the_same_sequences() -> None:
    model = small_model()
    decoder: Any = Decoder(model)
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 9, "eos_id": 3}
    tokens = random_tokens(model.config, 1, 5)
    assert beam_search(decoder, tokens, **options) == beam_search(model, tokens, **options)


def test_rows_longer_than_the_cache_are_refused() -> None:
    decoder = Decoder(small_model())
    cache = decoder.new_cache(1, 5)
    with pytest.raises(ConfigError, match="6 tokens do not fit context_length=5"):
        decoder(torch.zeros(1, 6, dtype=torch.long), cache)
    assert cache.length == 0


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"residual": "sandwich"}, "residual=sandwich"),
        ({"residual": "hyper_connections"}, "residual=hyper_connections"),
        ({"short_conv": "conv"}, "short_conv=conv"),
        ({"attention": {"part": "multihead", "gate": "head"}}, "attention.gate=true"),
        ({"attention": "mla", "positions": "none"}, "attention=mla"),
        ({"positions": "alibi"}, "positions=alibi"),
        ({"ngram_embeddings": "hashed"}, "ngram_embeddings=hashed"),
        ({"norm": "scalenorm"}, "norm=scalenorm"),
        ({"ffn": "elu"}, "the activations relu"),
        ({"ffn": "moe"}, "ffn=moe"),
        ({"encoder_layers": 1}, "encoder-decoder"),
    ],
)
def test_unsupported_models_are_refused_with_a_reason(parts: dict[str, Any], reason: str) -> None:
    model = small_model(**parts)
    with pytest.raises(ConfigError, match=reason) as caught:
        decoding_model(model, backend="cpp")
    assert len(str(caught.value).splitlines()) == 1
    assert decoding_model(model) is model
    assert reason in generation_backend(model.config)


def test_float64_and_autocast_use_the_model() -> None:
    assert generation_backend(small_model().config) == "cpp"
    double = small_model().double()
    assert decoding_model(double) is double
    with torch.autocast("cpu", torch.bfloat16):
        model = small_model()
        assert decoding_model(model) is model
    for options in ({"precision": "float16"}, {"backend": "fast"}):
        with pytest.raises(ConfigError, match="must be "):
            decoding_model(model, **options)


def test_without_a_compiler_the_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "library", lambda: None)
    model = small_model()
    assert decoding_model(model) is model
    with pytest.raises(ConfigError, match=r"backend=cpp does not support this model: the C\+\+ compiler is missing"):
        decoding_model(model, backend="cpp")


def test_nan_is_an_error() -> None:
    model = small_model()
    with torch.no_grad():
        model.blocks[0].ffn.down.weight[3, 3] = torch.nan
    with pytest.raises(ConfigError, match="diverged"):
        generate(model, CharacterTokenizer(ALPHABET), ["abc"], backend="cpp")


@pytest.mark.parametrize(
    ("parts", "words", "status", "message"),
    [
        ({}, ["--backend", "cpp", "--precision", "bfloat16"], 0, ""),
        ({}, ["--backend", "eager"], 0, ""),
        ({"positions": "alibi"}, [], 0, ""),
        ({"positions": "alibi"}, ["--backend", "cpp"], 2, "backend=cpp does not support this model: positions=alibi"),
        ({}, ["--backend", "fast"], 2, "backend=fast: must be auto, eager or cpp"),
        ({}, ["--precision", "float16"], 2, "precision=float16: must be float32 or bfloat16"),
    ],
)
def test_the_command_uses_the_requested_backend(
    parts: dict[str, Any],
    words: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = small_model(**parts)
    monkeypatch.setattr("partwise.cli.commands.generate.load", lambda name: (model, CharacterTokenizer(ALPHABET)))
    monkeypatch.setattr(
        sys, "argv", ["partwise", "generate", "mine", "--prompt", "abc", "--max-new-tokens", "5", *words]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    assert int(stopped.value.code or 0) == status and message in output.err
    assert len([line for line in output.err.splitlines() if "compiling" not in line]) == (1 if status else 0)
    assert status or len(output.out) > len("abc")
