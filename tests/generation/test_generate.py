"""Sampling is total and follows its specification; a continuation depends only on the seed and its own prompt."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import partwise
from backends import use_backends
from partwise import ConfigError
from partwise.generation import sampling
from partwise.generation.generate import decode, generate
from partwise.generation.sampling import Sampling, uniform_numbers
from partwise.tokenizers import ByteTokenizer, CharacterTokenizer
from recipes import perturbed

relaxed: dict[str, Any] = {
    "suppress_health_check": [HealthCheck.too_slow],
}
INF = math.inf


def reference(logits: list[float], u: float, temperature: float, top_k: int | None, top_p: float) -> int:
    """The specification of `Sampling`, one token at a time."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return order[0]
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order[:top_k]]
    kept: list[float] = []
    for weight in weights:
        if kept and math.fsum(kept) >= top_p * math.fsum(weights):
            break
        kept.append(weight)
    kept = [weight for weight in kept if weight > 0] or kept[:1]
    target = u * math.fsum(kept)
    for rank in range(len(kept)):
        if target < math.fsum(kept[: rank + 1]):
            return order[rank]
    return order[len(kept) - 1]


def sample(logits: list[float], u: float = 0.5, **options: Any) -> int:
    return int(Sampling(**options).sample(torch.tensor([logits], dtype=torch.float64), torch.tensor([u]).double())[0])


LOGIT = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-10, 10),
    st.floats(-1e300, 1e300),
    st.sampled_from([-INF, 0.0, -0.0, 1e308, -1e308, 5e-324]),
)
LOGITS = st.lists(LOGIT, min_size=1, max_size=8).filter(lambda row: max(row) > -INF)
TEMPERATURE = st.one_of(st.just(0.0), st.floats(0.1, 3), st.floats(0, 1e308), st.sampled_from([5e-324, 1e-300]))
TOP_K = st.none() | st.integers(1, 10) | st.just(10**9)
TOP_P = st.one_of(st.sampled_from([0.0, 1.0, 5e-324, 0.5, 1 - 2**-53]), st.floats(0, 1))
UNIFORM = st.one_of(st.sampled_from([0.0, 1 - 2**-53]), st.floats(0, 1, exclude_max=True))


@settings(max_examples=600, **relaxed)
@given(logits=LOGITS, u=UNIFORM, temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P)
@example(logits=[-INF, 0.0, -INF], u=1 - 2**-53, temperature=1e308, top_k=None, top_p=1.0)
@example(logits=[1e308, -1e308], u=0.0, temperature=5e-324, top_k=None, top_p=0.0)
@example(logits=[0.0] * 8, u=1 - 2**-53, temperature=1.0, top_k=3, top_p=0.1)
def test_sampling_is_total(logits: list[float], u: float, temperature: float, top_k: int | None, top_p: float) -> None:
    token = sample(logits, u, temperature=temperature, top_k=top_k, top_p=top_p)
    assert 0 <= token < len(logits)
    assert logits[token] > -INF, "a token of probability 0 was sampled"
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k is not None:
        assert ranking.index(token) < top_k
    if temperature == 0 or top_p == 0 or top_k == 1:
        assert token == ranking[0]


@settings(max_examples=400, **relaxed)
@given(
    logits=st.lists(st.sampled_from([-INF, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=7).filter(
        lambda row: max(row) > -INF
    ),
    number=st.integers(0, 999),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7, 50.0]),
    top_k=st.none() | st.integers(1, 8),
    top_p=st.sampled_from([0.0, 0.1234, 0.377, 0.61803, 0.9171, 1.0]),
)
def test_sampling_follows_its_specification(
    logits: list[float], number: int, temperature: float, top_k: int | None, top_p: float
) -> None:
    u = (number + 0.4142) / 1000  # never at the boundary between two tokens, where rounding would decide
    expected = reference(logits, u, temperature, top_k, top_p)
    assert sample(logits, u, temperature=temperature, top_k=top_k, top_p=top_p) == expected


def sample_from_all(rule: Sampling, logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample from the fully sorted vocabulary, in float64: slow but simple."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    if rule.temperature == 0:
        return order[:, 0]
    ranked = logits.double().gather(-1, order)
    probabilities = ((ranked - ranked[:, :1]) / rule.temperature).softmax(dim=-1)
    if rule.top_k is not None:
        probabilities[:, rule.top_k :] = 0
    mass = probabilities.cumsum(dim=-1)
    kept = mass - probabilities < rule.top_p * mass[:, -1:]
    kept[:, 0] = True
    mass = (probabilities * kept).cumsum(dim=-1)
    rank = torch.searchsorted(mass, uniform[:, None] * mass[:, -1:], right=True)
    rank = torch.minimum(rank, (kept & (probabilities > 0)).sum(dim=-1, keepdim=True) - 1)
    return order.gather(-1, rank).squeeze(-1)


@settings(max_examples=150, **relaxed)
@given(
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.none() | st.integers(1, 400),
    top_p=st.sampled_from([1.0, 0.9137, 0.3171]),
    spread=st.sampled_from([0.01, 1.0, 20.0]),
    ties=st.booleans(),  # many equal logits, also across the last candidate
    n_candidates=st.sampled_from([1, 5, 40, 120, 1024]),
    seed=st.integers(0, 99),
)
def test_sorting_only_the_candidates_changes_no_sample(
    temperature: float, top_k: int | None, top_p: float, spread: float, ties: bool, n_candidates: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(5, 300, generator=random)
    logits = logits.round() if ties else logits
    logits[torch.rand(logits.shape, generator=random) < 0.1] = -INF
    uniform, rule = torch.rand(5, generator=random, dtype=torch.float64), Sampling(temperature, top_k, top_p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "N_CANDIDATES", n_candidates)
        assert torch.equal(rule.sample(logits, uniform), sample_from_all(rule, logits, uniform))


@pytest.mark.parametrize(
    ("logits", "rule", "allowed"),
    [
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5}, {0, 1}),  # ties go to the lower id
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5000001}, {0, 1, 2}),
        ([0.0, 1.0, 1.0, 1.0], {"top_k": 2}, {1, 2}),
        ([0.0, 0.0, 0.0, 0.0], {"top_k": 2, "top_p": 0.5}, {0}),  # top_p applies after top_k
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.0}, {0}),
        ([0.0, 0.0, -INF], {}, {0, 1}),
        ([3.0, 1.0, 2.0], {"temperature": 0.0}, {0}),
        ([1.0, 3.0, 3.0], {"temperature": 0.0}, {1}),
        ([1.0, 2.0], {"temperature": 1e-300}, {1}),
        ([1.0, 2.0], {"top_k": 99}, {0, 1}),
    ],
)
def test_which_tokens_can_be_sampled(logits: list[float], rule: dict[str, Any], allowed: set[int]) -> None:
    assert {sample(logits, u, **rule) for u in np.linspace(0, 1, 200, endpoint=False)} == allowed


@pytest.mark.parametrize(
    "rule", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 2.0, "top_k": 4, "top_p": 0.9}]
)
def test_samples_have_the_specified_distribution(rule: dict[str, Any]) -> None:
    """Chi-square over 20,000 seeded samples, at a significance level of 0.001."""
    from scipy.stats import chisquare

    logits, draws = torch.tensor([0.3, -1.0, 1.2, 0.0, 0.9, -0.4], dtype=torch.float64), 20_000
    order = logits.argsort(descending=True)
    weights = (logits[order] / rule.get("temperature", 1.0)).exp()[: rule.get("top_k")]
    before = (weights.cumsum(0) - weights) / weights.sum()
    weights = weights[before < rule.get("top_p", 1.0)]
    expected = (weights / weights.sum() * draws).tolist()
    uniform = uniform_numbers([0], draws, seed=3)[0]
    found = Counter(Sampling(**rule).sample(logits.expand(draws, -1), uniform).tolist())
    assert set(found) == set(order[: len(expected)].tolist())
    assert chisquare([found[int(i)] for i in order[: len(expected)]], expected).pvalue > 1e-3


@pytest.mark.parametrize("row", [[math.nan, 0.0], [INF, 0.0], [-INF, -INF], [0.0, math.nan]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused(row: list[float], temperature: float) -> None:
    with pytest.raises(ConfigError, match="not finite: it diverged in training") as caught:
        sample(row, temperature=temperature)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": INF}, "temperature=inf"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": -0.1}, "top_p=-0.1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_p": math.nan}, "top_p=nan"),
    ],
)
def test_invalid_sampling_options_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Sampling(**rule)
    assert len(str(caught.value).splitlines()) == 1


def test_uniform_numbers_depend_only_on_seed_and_row() -> None:
    whole = uniform_numbers(range(5), 7, seed=1)
    assert torch.equal(uniform_numbers([3, 0], 4, seed=1), whole[[3, 0], :4])
    assert len(set(whole.flatten().tolist())) == 35 and whole.min() >= 0 and whole.max() < 1
    assert not (uniform_numbers(range(5), 7, seed=2) == whole).any()
    for seed in (-1, 2**64):
        with pytest.raises(ConfigError, match=f"seed={seed}: "):
            uniform_numbers([0], 1, seed)
    assert uniform_numbers([0], 1, 2**64 - 1).shape == (1, 1)


# Texts

ALPHABET = "abcdefgh\n"


def model_of(vocab: int, context_length: int = 12, seed: int = 0, **parts: Any) -> partwise.Transformer:
    sizes = {"vocab_size": vocab, "d_model": 16, "n_layers": 2, "context_length": context_length}
    return perturbed(partwise.ModelConfig.from_dict({**sizes, **parts}), seed)


CHARACTERS = CharacterTokenizer(ALPHABET)
MODEL = model_of(len(ALPHABET))
POSITIONS = ["rope", "learned", "sinusoidal", "none"]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cached_texts_equal_uncached_ones_beyond_the_window(positions: str, temperature: float, backend: str) -> None:
    parts = {"positions": positions, "attention": {"part": "multihead", "n_heads": 4, "n_kv_heads": 2}}
    model = model_of(len(ALPHABET), **parts)
    use_backends(model, backend)
    prompts = ["a", "abc", "hgf", "abcdefgh\nabc", "abcdefgh\nabcdefgh"]  # below, at and above context_length=12
    texts = [
        generate(model, CHARACTERS, prompts, max_new_tokens=30, temperature=temperature, seed=5, cached=cached)
        for cached in (True, False)
    ]
    assert texts[0] == texts[1]
    assert all(len(text) == 30 for text in texts[0])


def test_decode_equals_a_plain_loop() -> None:
    """Greedy decoding against the usual loop: crop, forward, argmax, append."""
    tokens = torch.tensor([[0, 3, 5], [1, 1, 2]])
    with torch.no_grad():
        plain = tokens
        for _ in range(25):
            plain = torch.cat([plain, MODEL(plain[:, -12:])[:, -1].argmax(-1, keepdim=True)], dim=1)
    found = torch.stack(list(decode(MODEL, tokens, torch.zeros(2, 25), Sampling(temperature=0))), dim=1)
    assert torch.equal(found, plain[:, 3:])


def test_decode_does_not_track_gradients() -> None:
    for chosen in decode(MODEL, torch.tensor([[0]]), torch.zeros(1, 3), Sampling()):
        assert not chosen.requires_grad and torch.is_grad_enabled()


@settings(max_examples=15, **relaxed)
@given(
    prompts=st.lists(st.text(ALPHABET, min_size=1, max_size=15), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_a_continuation_ignores_the_other_prompts(prompts: list[str], seed: int, data: st.DataObject) -> None:
    rule: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.3, "top_p": 0.9, "seed": seed}
    texts = generate(MODEL, CHARACTERS, prompts, **rule)
    index = data.draw(st.integers(0, len(prompts) - 1))
    others = [data.draw(st.text(ALPHABET, min_size=1, max_size=15)) for _ in prompts]
    others[index] = prompts[index]
    assert generate(MODEL, CHARACTERS, others, **rule)[index] == texts[index]
    assert generate(MODEL, CHARACTERS, prompts, **rule) == texts


def test_seeds_and_indices_give_different_texts() -> None:
    texts = generate(MODEL, CHARACTERS, ["ab"] * 3, max_new_tokens=20) + generate(
        MODEL, CHARACTERS, ["ab"] * 3, max_new_tokens=20, seed=1
    )
    assert len(set(texts)) == 6
    greedy = generate(MODEL, CHARACTERS, ["ab"] * 3, max_new_tokens=20, temperature=0, seed=9)
    assert len(set(greedy)) == 1


def test_the_stop_token_ends_a_text_and_is_its_last_character() -> None:
    prompts = ["a", "bb", "ab", "hg", "fff"]
    free = generate(MODEL, CHARACTERS, prompts, max_new_tokens=40, seed=2)
    stopped = generate(MODEL, CHARACTERS, prompts, max_new_tokens=40, seed=2, stop="e")
    cut = [text[: text.index("e") + 1] if "e" in text else text for text in free]
    assert stopped == cut and any(len(text) < 40 for text in cut)


@pytest.mark.parametrize("stop", [None, "e"])
def test_pieces_join_to_the_texts(stop: str | None) -> None:
    pieces: dict[int, list[str]] = {}
    prompts = ["a", "bb", "ab"]
    texts = generate(
        MODEL,
        CHARACTERS,
        prompts,
        max_new_tokens=20,
        stop=stop,
        on_text=lambda row, piece: pieces.setdefault(row, []).append(piece),
    )
    assert ["".join(pieces[row]) for row in range(3)] == texts
    assert all(piece for own in pieces.values() for piece in own)


class FixedOutput(torch.nn.Module):
    """Generates the given bytes after a prompt of one byte."""

    def __init__(self, output: bytes) -> None:
        super().__init__()
        self.output, self.config, self.embed = output, MODEL.config, MODEL.embed

    def new_cache(self, batch: int, length: int, source: None = None) -> None:
        return None

    def forward(self, tokens: Tensor, cache: None = None, source: None = None) -> Tensor:
        logits = torch.full((*tokens.shape, 256), -1e9)
        logits[:, -1, self.output[tokens.shape[1] - 1]] = 0.0
        return logits


@pytest.mark.parametrize("text", ["aé€😀b", "😀", "é", "日本語"])
def test_a_multi_byte_character_is_streamed_as_one_piece(text: str) -> None:
    output, pieces = text.encode(), []
    model: Any = FixedOutput(output)
    model.config = model_of(256, context_length=64).config
    for length in range(1, len(output) + 1):
        pieces.clear()
        found = generate(
            model, ByteTokenizer(), ["x"], max_new_tokens=length, on_text=lambda row, piece: pieces.append(piece)
        )
        assert found == [output[:length].decode(errors="replace")] == ["".join(pieces)]
    assert pieces == list(text)


def test_streamed_random_bytes_equal_the_decoded_text() -> None:
    """A random model over bytes generates mostly invalid UTF-8; every piece is valid text and nothing is lost."""
    model, tokenizer = model_of(256, context_length=40), ByteTokenizer()
    prompts, pieces = ["x", "y\u00e9", "zzz", "😀"], dict.fromkeys(range(4), "")

    def collect(row: int, piece: str) -> None:
        assert piece and piece.encode()
        pieces[row] += piece

    texts = generate(model, tokenizer, prompts, max_new_tokens=60, temperature=3.0, on_text=collect)
    assert [pieces[row] for row in range(4)] == texts
    for row, prompt in enumerate(prompts):
        uniform = uniform_numbers([row], 60, 0)
        tokens = torch.from_numpy(tokenizer.encode(prompt))[None]
        ids = [int(chosen) for chosen in decode(model, tokens, uniform, Sampling(3.0))]
        assert tokenizer.decode(ids) == texts[row]


@pytest.mark.parametrize(
    ("prompts", "rule", "message"),
    [
        ([""], {}, "the prompt is empty"),
        (["a", ""], {}, "the prompt is empty"),
        (["é"], {}, "is not among the 9"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens=0"),
        (["a"], {"stop": "ab"}, "stop='ab' is 2 tokens"),
        (["a"], {"stop": ""}, "stop='' is 0 tokens"),
        (["a"], {"stop": "é"}, "is not among the 9"),
        (["a"], {"seed": -1}, "seed=-1"),
        (["a"], {"temperature": -1}, "temperature=-1"),
        (["a"], {"top_k": 0}, "top_k=0"),
        (["a"], {"top_p": 2}, "top_p=2"),
    ],
)
def test_invalid_requests_are_refused(prompts: list[str], rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        generate(MODEL, CHARACTERS, prompts, **rule)
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_diverged_model_is_reported() -> None:
    model = model_of(len(ALPHABET))
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    with pytest.raises(ConfigError, match="diverged"):
        generate(model, CHARACTERS, ["a"])


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_is_restored(training: bool) -> None:
    dropout = {"part": "pre", "dropout": 0.5}
    model = model_of(len(ALPHABET), residual=dropout).train(training)
    expected = generate(model_of(len(ALPHABET)), CHARACTERS, ["abc"], max_new_tokens=10)
    assert generate(model, CHARACTERS, ["abc"], max_new_tokens=10) == expected
    assert model.training is training
    with pytest.raises(ZeroDivisionError):
        generate(model, CHARACTERS, ["abc"], max_new_tokens=10, on_text=lambda row, piece: 1 // 0)
    assert model.training is training


def test_no_prompts_give_no_texts() -> None:
    assert generate(MODEL, CHARACTERS, []) == []
