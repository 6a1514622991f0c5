"""Beam search equals a search that recomputes every sequence from its start, and an exhaustive one if it is wide enough."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partwise import ConfigError
from partwise.generation.beam_search import beam_search
from partwise.model import ModelConfig, Transformer
from recipes import perturbed

V, EOS = 5, 2


def new_model(seed: int, window: int | None = None) -> Transformer:
    attention = {"part": "multihead", "n_heads": 2, "window": window}
    sizes = {"vocab_size": V, "context_length": 12, "d_model": 8, "n_layers": 2}
    return perturbed(
        ModelConfig.from_dict({**sizes, "attention": attention}), seed, size=2.0
    )  # uneven, so that beams cross


def log_probabilities(model: Transformer, prompt: list[int], row: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([prompt + row]))[0, -1].log_softmax(-1)


def score(log_p: float, n: int, length_penalty: float) -> float:
    return log_p / ((5 + n) / 6) ** length_penalty


def plain_search(
    model: Transformer,
    prompt: list[int],
    num_beams: int,
    max_new_tokens: int,
    eos_id: int | None,
    length_penalty: float,
) -> list[int]:
    """The rule of Wu et al., without a cache and without stopping early."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(max_new_tokens):
        extended = [
            (log_p + float(log_q), [*row, token])
            for log_p, row in beams
            for token, log_q in enumerate(log_probabilities(model, prompt, row))
        ]
        extended.sort(key=lambda beam: -beam[0])
        beams = []
        for log_p, row in extended:
            if len(beams) == num_beams:
                break
            if row[-1] == eos_id or step == max_new_tokens - 1:
                ended.append((score(log_p, len(row), length_penalty), row))
            else:
                beams.append((log_p, row))
        if not beams:
            break
    return max(ended, key=lambda each: each[0])[1]


@given(
    seed=st.integers(0, 10_000),
    num_beams=st.integers(1, 4),
    max_new_tokens=st.integers(1, 6),
    eos_id=st.sampled_from([None, EOS]),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    window=st.booleans(),
)
def test_equals_a_search_without_a_cache(
    seed: int, num_beams: int, max_new_tokens: int, eos_id: int | None, length_penalty: float, window: bool
) -> None:
    model = new_model(seed % 20, 3 if window else None)
    prompt = [seed % V, seed // V % V, seed // V**2 % V]
    found = beam_search(
        model,
        torch.tensor([prompt]),
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
        eos_id=eos_id,
        length_penalty=length_penalty,
    )
    assert found == plain_search(model, prompt, num_beams, max_new_tokens, eos_id, length_penalty)


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_search_is_exhaustive(seed: int) -> None:
    """With as many beams as there are prefixes, the best of all sequences is found."""
    model, n = new_model(seed), 4
    rows = [row for m in range(n + 1) for row in product(range(V), repeat=m)]
    following = {row: log_probabilities(model, [1], list(row)) for row in rows if len(row) < n}
    whole = [row for row in rows[1:] if EOS not in row[:-1] and (row[-1] == EOS or len(row) == n)]
    total = {row: sum(following[row[:k]][token].item() for k, token in enumerate(row)) for row in whole}
    for length_penalty in (0.0, 0.6, 1.5):
        found = beam_search(
            model, torch.tensor([[1]]), num_beams=V**n, max_new_tokens=n, eos_id=EOS, length_penalty=length_penalty
        )
        assert tuple(found) == max(whole, key=lambda row: score(total[row], len(row), length_penalty))


def test_bad_input_is_refused() -> None:
    model, tokens = new_model(0), torch.tensor([[1, 2]])
    with pytest.raises(ConfigError, match="num_beams=0: must be at least 1"):
        beam_search(model, tokens, num_beams=0, max_new_tokens=2, eos_id=None)
    with pytest.raises(ConfigError, match="2 tokens and 12 more do not fit context_length=12"):
        beam_search(model, tokens, num_beams=2, max_new_tokens=12, eos_id=None)
