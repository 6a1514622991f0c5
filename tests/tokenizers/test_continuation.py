"""A prompt and its continuation, joined, are the text of all their ids: for every kind of tokenizer, streamed or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer_kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
@given(numbers=st.lists(st.integers(0, 999), min_size=1, max_size=10))
def test_prompt_and_continuation_join_to_the_text_of_all_ids(kind: str, numbers: list[int]) -> None:
    tokenizer = KINDS[kind]
    ids = [number % tokenizer.vocab_size for number in numbers]
    whole, bytes_of_llama = tokenizer.decode(ids), range(1, 9) if kind in ("llama2", "special") else ()
    for at in range(len(ids)):
        prompt = tokenizer.decode(ids[:at])
        if prompt.endswith("\ufffd") or (at and ids[at - 1] in bytes_of_llama):
            continue  # inside a character, which no prompt's ids end with
        stream = tokenizer.decode_stream(ids[:at])
        pieces = [stream.push(index) for index in ids[at:]]
        assert prompt + "".join(pieces) + stream.flush() == whole
        assert prompt + tokenizer.continuation(ids[:at], ids[at:]) == whole
