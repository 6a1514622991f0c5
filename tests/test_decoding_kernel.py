"""The compiled step of a whole decoder against the plain model in float64, over whatever it says it serves."""

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

from partwise import ConfigError
from partwise.cli import main
from partwise.compute import decoding
from partwise.compute.backends import decoding_backend
from partwise.compute.bf16_emulation import emulate_bf16
from partwise.compute.decoding import Decoder, unsupported_reason, unsupported_layer
from partwise.config import REGISTRY
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import decode, decoding_model, generate
from partwise.generation.sampling import Sampling
from partwise.kernels import decoding_weights
from partwise.model import ModelConfig, Transformer
from partwise.tokenizers import CharacterTokenizer
from recipes import configs, error, perturbed, recipes

CLOSE = 1e-5  # of the largest logit
POSITIONS = ["none", "learned", "sinusoidal", *(name for name in REGISTRY["positions"] if name.startswith("rope"))]
FFN = [name for name, kind in REGISTRY["ffn"].items() if hasattr(kind, "activation") and name != "elu"]
ALPHABET = "abcdefghij\n"
relaxed: dict[str, Any] = {
    "suppress_health_check": [HealthCheck.too_slow],
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],  # shrinking a failure takes minutes
}


@pytest.fixture(scope="module", autouse=True)
def compiled(shared_cache: Path) -> None:
    if decoding_weights.library() is None:
        pytest.skip("no C++ compiler here")


@st.composite
def served(draw: DrawFn) -> ModelConfig:
    """A small random decoder of what the kernel knows, longer than a few vectors are wide."""
    ffn = draw(recipes("ffn", draw(st.sampled_from(FFN))))
    ffn |= {key: value for key, value in (("beta", 1.0), ("trainable_beta", False)) if key in ffn}
    switches = {each: draw(st.booleans()) for each in ("tied", "head_bias", "scale_embeddings", "embed_norm")}

    def attention() -> dict[str, Any]:
        window = draw(st.none() | st.integers(2, 40))
        one = draw(recipes("attention", "multihead"))
        return one | {"gate": "none", "value_residual": False, "window": window, "n_heads": heads, "head_dim": width}

    heads, width = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([2, 4, 6, 18, 64, 66]))
    values = {
        "vocab_size": draw(st.integers(2, 70)),
        "d_model": draw(st.integers(2, 40)),
        "n_layers": 2,
        "context_length": 60,
        "positions": draw(recipes("positions", draw(st.sampled_from(POSITIONS)))),
        "attention": [attention(), attention()],
        "ffn": ffn | {"hidden": draw(st.integers(1, 80))},
        "norm": draw(recipes("norm", draw(st.sampled_from(["layernorm", "rmsnorm", "none"])))),
        "residual": draw(recipes("residual", "pre")),
        "logit_softcap": draw(st.none() | st.floats(1, 30)),
    }
    try:
        return ModelConfig.from_dict(values | switches)
    except ConfigError:
        reject()


def ids_of(config: ModelConfig, rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def close_in_float32(found: Tensor, model: Transformer, exact: Transformer, tokens: Tensor) -> None:
    """To 1e-5, or where the model magnifies rounding, to a few times what the plain path in float32 loses."""
    true = exact(tokens)[:, -1:]
    lost = error(model(tokens)[:, -1:].double(), true)
    assert error(found.double(), true) <= CLOSE + 4 * lost


def close_in_bfloat16(found: Tensor, model: Transformer, exact: Transformer, tokens: Tensor) -> None:
    """As far off as rounding what is multiplied moves the logits at most: a sum whose last bit differs may round to the
    other neighbour. `test_bfloat16_products_are_exact` is what is sharp."""
    true, unrounded = exact(tokens), copy.deepcopy(exact)
    for module in unrounded.modules():
        module._forward_pre_hooks.clear()
    assert error(found.double(), true[:, -1:]) <= CLOSE + 4 * error(unrounded(tokens), true)


@pytest.mark.parametrize("half", [False, True])
@settings(max_examples=15, **relaxed)
@given(config=served(), data=st.data())
@torch.no_grad()
def test_cached_steps_equal_the_plain_model(half: bool, config: ModelConfig, data: st.DataObject) -> None:
    """In pieces of any length, through a change of rows and a way back."""
    model = perturbed(config, data.draw(st.integers(0, 99))).float()
    model = emulate_bf16(model) if half else model
    exact = copy.deepcopy(model).double()
    rows, length = data.draw(st.integers(1, 14)), data.draw(st.integers(1, config.context_length))
    tokens = ids_of(config, rows, length)
    decoder, close = Decoder(model, half), close_in_bfloat16 if half else close_in_float32
    states = decoder.new_cache(rows, length)
    cuts = sorted({*data.draw(st.lists(st.integers(1, length), max_size=4)), length})
    change = data.draw(st.sampled_from(cuts))
    for cut in cuts:
        close(decoder(tokens[:, states.length : cut], states), model, exact, tokens[:, :cut])
        if cut == change:
            chosen = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5)))
            states.select(chosen)
            tokens = tokens[chosen]
    states.truncate(data.draw(st.integers(0, length - 1)))
    other = torch.cat((tokens[:, : states.length], (tokens[:, states.length :] + 1) % config.vocab_size), dim=1)
    close(decoder(other[:, states.length :], states), model, exact, other)


@settings(max_examples=20, **relaxed)
@given(config=configs())
@torch.no_grad()
def test_it_serves_a_model_rightly_or_says_why_not(config: ModelConfig) -> None:
    model = perturbed(config).float()
    reason = unsupported_reason(model)
    assert (reason is None) == (unsupported_layer(model) is None)
    if reason is None:
        tokens = ids_of(config, 2, config.context_length)
        close_in_float32(Decoder(model)(tokens, Decoder(model).new_cache(2)), model, copy.deepcopy(model).double(), tokens)
    else:
        with pytest.raises(ConfigError, match="backend=cpp does not support this model: ") as caught:
            decoding_model(model, backend="cpp")
        assert len(str(caught.value).splitlines()) == 1 and reason in str(caught.value)
        assert decoding_model(model) is model


@settings(max_examples=30, **relaxed)
@given(
    *[st.integers(1, 70)] * 2, st.sampled_from(["relu", "reglu"]), st.integers(1, 40), st.just(1) | st.integers(1, 20)
)
def test_bfloat16_products_are_exact(d_model: int, hidden: int, ffn: str, rows: int, length: int) -> None:
    check_exact(d_model, hidden, ffn, rows, length)


@torch.no_grad()
def check_exact(d_model: int, hidden: int, ffn: str, rows: int, length: int) -> None:
    """Whole numbers of more than eight bits, which rounding changes and float32 adds up without any: to the bit."""
    sizes = {"d_model": d_model, "vocab_size": 50, "n_layers": 1, "context_length": 20}
    layers: dict[str, Any] = {"attention": {"part": "multihead", "n_heads": 1}, "ffn": {"part": ffn, "hidden": hidden}}
    unnormed = {"positions": "learned", "norm": "none", "residual": {"part": "pre", "final_norm": False}}
    values = {**sizes, **layers, **unnormed}
    model = Transformer(ModelConfig.from_dict(values))
    most = 600 if ffn == "relu" else 40  # a gate squares it
    for key, parameter in model.named_parameters():
        far = most if "embed" in key or "positions" in key else 1
        parameter.copy_(torch.randint(-far, far + 1, parameter.shape, generator=torch.Generator().manual_seed(hidden)))
    turned = torch.eye(d_model)[torch.randperm(d_model, generator=torch.Generator().manual_seed(hidden))]
    model.blocks[0].attention.out.weight.copy_(-turned if length == 1 else 0 * turned)  # one value has the weight 1
    tokens = ids_of(model.config, rows, length)
    decoder = Decoder(emulate_bf16(model), bf16=True)
    assert torch.equal(decoder(tokens, decoder.new_cache(rows)), emulate_bf16(model)(tokens)[:, -1:])


def test_rounding_would_show() -> None:
    """Else the check above would see none of it."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr("partwise.compute.bf16_emulation.round_input", lambda layer, inputs: None)
        check_exact(60, 60, "relu", 4, 4)


def plain(**parts: Any) -> Transformer:
    sizes = {"vocab_size": len(ALPHABET), "d_model": 24, "n_layers": 2, "context_length": 20}
    return perturbed(ModelConfig.from_dict({**sizes, **parts})).float()


@torch.no_grad()
def test_a_row_is_the_same_whatever_stands_beside_it_and_however_many_threads_work() -> None:
    model = plain(attention={"part": "multihead", "n_heads": 6, "n_kv_heads": 2})
    decoder, tokens = Decoder(model, bf16=True), ids_of(model.config, 29, 20)
    alone = torch.cat([decoder(row[None], decoder.new_cache(1)) for row in tokens])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        states = decoder.new_cache(29)
        first = decoder(tokens[:, :7], states)
        assert not torch.equal(first, alone)
        for column in range(7, 20):
            last = decoder(tokens[:, column : column + 1], states)
        assert torch.equal(last, alone)


CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "windows": {"attention": {"part": "multihead", "n_heads": 4, "n_kv_heads": 1, "window": 5}},
    "gpt2": {"positions": "learned", "norm": "layernorm", "ffn": {"part": "gelu", "bias": True}, "head_bias": True},
    "sinks": {"attention": {"part": "multihead", "n_heads": 2, "sinks": True, "softcap": 5.0, "qk_norm": "full"}},
}


@pytest.mark.parametrize("parts", CASES.values(), ids=CASES)
def test_texts_are_those_of_the_plain_path(parts: dict[str, Any]) -> None:
    """Below, at and beyond context_length, drawn and greedy, with a stop and with beams; margins are far above rounding."""
    model, characters = plain(**parts), CharacterTokenizer(ALPHABET)
    with torch.no_grad():
        model.head.weight.mul_(4)
    prompts = ["a", "abc", "abcdefghij\nabcdefghi", "abcdefghij\nabcdefghij\nabc"]
    rules: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 4, "precision": "bfloat16"},
        {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "stop": "e"},
        {"num_beams": 3},
    ]
    for rule in rules:
        asked = [prompt for prompt in prompts if "num_beams" not in rule or len(prompt) < 15]
        texts = [
            generate(model, characters, asked, max_new_tokens=16, backend=path, **rule) for path in ("eager", "auto")
        ]
        assert texts[0] == texts[1], rule


def test_auto_takes_the_kernel_and_torch_does_not() -> None:
    model = plain()
    assert isinstance(decoding_model(model), Decoder) and isinstance(decoding_model(model, backend="cpp"), Decoder)
    assert decoding_model(model, backend="eager") is model
    other = decoding_model(model, "bfloat16", "eager")
    assert isinstance(other, Transformer) and other is not model
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name].bfloat16().float())


def test_the_first_token_comes_from_a_prompt_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for the prompt, then one for each token, none of which grows with the length."""
    model, calls = plain(), list[tuple[int, ...]]()
    decoder, real = Decoder(model), Decoder.step

    def counting(self: Decoder, tokens: Tensor, states: Any, wanted: bool) -> Tensor:
        calls.append(tuple(tokens.shape))
        return real(self, tokens, states, wanted)

    monkeypatch.setattr(Decoder, "step", counting)
    prompts = ids_of(model.config, 3, 9)
    list(decode(decoder, prompts, torch.zeros(3, 6), Sampling(0.0)))
    assert calls == [(3, 9), *[(3, 1)] * 5]


def test_a_beginning_that_rows_share_is_computed_once() -> None:
    model = plain()
    tokens = torch.cat([torch.arange(8).expand(4, -1), torch.arange(4)[:, None]], dim=1)
    uniform = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = [torch.stack(list(decode(each, tokens, uniform, Sampling()))) for each in (model, Decoder(model))]
    assert torch.equal(*found)
    assert len({tuple(row) for row in found[0].T.tolist()}) > 1


def test_beams_run_on_it() -> None:
    model = plain()
    decoder: Any = Decoder(model)
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 9, "end": 3}
    tokens = ids_of(model.config, 1, 5)
    assert beam_search(decoder, tokens, **options) == beam_search(model, tokens, **options)


def test_a_row_that_is_too_long_is_refused() -> None:
    decoder = Decoder(plain())
    states = decoder.new_cache(1, 5)
    with pytest.raises(ConfigError, match="6 tokens do not fit context_length=5"):
        decoder(torch.zeros(1, 6, dtype=torch.long), states)
    assert states.length == 0


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"residual": "sandwich"}, "only residual=pre"),
        ({"residual": "hyper_connections"}, "residual=hyper_connections"),
        ({"short_conv": "token_shift"}, "only short_conv=none"),
        ({"attention": {"part": "multihead", "gate": "head"}}, "attention.gate and"),
        ({"attention": "mla", "positions": "none"}, "only attention=multihead"),
        ({"positions": "alibi"}, "positions=alibi"),
        ({"ngram_embeddings": "hashed"}, "ngram_embeddings=hashed"),
        ({"norm": "scalenorm"}, "norm=scalenorm"),
        ({"ffn": "elu"}, "MLPs with the activations relu"),
        ({"ffn": "moe"}, "MLPs with the activations relu"),
        ({"encoder_layers": 1}, "encoder-decoder"),
    ],
)
def test_what_it_does_not_serve_is_said(parts: dict[str, Any], reason: str) -> None:
    model = plain(**parts)
    with pytest.raises(ConfigError, match=reason) as caught:
        decoding_model(model, backend="cpp")
    assert len(str(caught.value).splitlines()) == 1
    assert decoding_model(model) is model
    assert reason in decoding_backend(model.config)


def test_other_precisions_are_the_plain_paths() -> None:
    assert decoding_backend(plain().config) == "cpp"
    double = plain().double()
    assert decoding_model(double) is double
    with torch.autocast("cpu", torch.bfloat16):
        model = plain()
        assert decoding_model(model) is model
    for options in ({"precision": "float16"}, {"backend": "fast"}):
        with pytest.raises(ConfigError, match="give "):
            decoding_model(model, **options)


def test_without_a_compiler_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "library", lambda: None)
    model = plain()
    assert decoding_model(model) is model
    with pytest.raises(ConfigError, match=r"backend=cpp does not support this model: the C\+\+ compiler is missing"):
        decoding_model(model, backend="cpp")


def test_not_a_number_is_seen() -> None:
    model = plain()
    with torch.no_grad():
        model.blocks[0].ffn.down.weight[3, 3] = torch.nan
    with pytest.raises(ConfigError, match="diverged"):
        generate(model, CharacterTokenizer(ALPHABET), ["abc"], backend="cpp")


@pytest.mark.parametrize(
    ("parts", "words", "status", "said"),
    [
        ({}, ["--backend", "cpp", "--precision", "bfloat16"], 0, ""),
        ({}, ["--backend", "eager"], 0, ""),
        ({"positions": "alibi"}, [], 0, ""),
        ({"positions": "alibi"}, ["--backend", "cpp"], 2, "backend=cpp does not support this model: positions=alibi"),
        ({}, ["--backend", "fast"], 2, "backend=fast: give auto, eager or cpp"),
        ({}, ["--precision", "float16"], 2, "precision=float16: give float32 or bfloat16"),
    ],
)
def test_the_command_takes_the_path_that_it_is_told(
    parts: dict[str, Any],
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = plain(**parts)
    monkeypatch.setattr("partwise.cli.commands.train.load", lambda name: (model, CharacterTokenizer(ALPHABET)))
    monkeypatch.setattr(sys, "argv", ["partwise", "generate", "mine", "--prompt", "abc", "--length", "5", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert int(ended.value.code or 0) == status and said in shown.err
    assert len([line for line in shown.err.splitlines() if "compiling" not in line]) == (1 if status else 0)
    assert status or len(shown.out) > len("abc")
