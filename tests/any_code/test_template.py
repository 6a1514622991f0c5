"""Commands are split before they are filled, so that no value changes the words; braces double; unknown names are refused."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise.any_code.template import fill, fill_shell, fill_words, placeholders, split_words
from partwise.config import ConfigError

TEXT = st.text(st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), max_size=20)


def test_words_are_those_of_a_shell_with_values_in_place() -> None:
    words = fill_words("python 'my train.py' --seed={seed} {args} --json={{}}", ["--a=1 2", "b"], {"seed": "3"})
    assert words == ["python", "my train.py", "--seed=3", "--a=1 2", "b", "--json={}"]


@given(TEXT, st.lists(TEXT))
def test_no_value_changes_the_number_of_words(value: str, args: list[str]) -> None:
    escaped = [each.replace("{", "{{").replace("}", "}}") for each in args]
    assert fill_words("run --x={x} {args} end", escaped, {"x": value}) == ["run", f"--x={value}", *args, "end"]


@given(TEXT.filter(lambda text: "\r" not in text))
def test_a_shell_sees_values_and_does_not_interpret_them(value: str) -> None:
    text = fill_shell("printf '%s|' {x} {args}", ["{x}"], {"x": value})
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True)
    assert done.stdout == f"{value}|{value}|".encode()


@given(TEXT)
def test_doubled_braces_are_braces(text: str) -> None:
    assert fill(text.replace("{", "{{").replace("}", "}}"), {}) == text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run {sed}", r"{sed} in .* is unknown; did you mean 'seed'\? \(known: seed\); write {{ for a brace"),
        ("run {seed", "has a single {: write {{ for a brace"),
        ("run seed}", "has a single }: write }} for a brace"),
        ("run --all={args}", "{args} stands for several words, so it must be a word of its own"),
        ("run 'it", "cannot be split into words: no closing quotation; check its quotes"),
        ("   ", "the command is empty"),
    ],
)
def test_a_command_that_cannot_be_filled_is_refused(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        fill_words(command, ["x"], {"seed": "1"})
    assert "\n" not in str(caught.value)


def test_placeholders() -> None:
    assert placeholders("{a} {{b}} x{c}{a}") == {"a", "c"}


@given(st.lists(TEXT.filter(bool), min_size=1))
def test_splitting_undoes_quoting(words: list[str]) -> None:
    assert split_words(shlex.join(words)) == words
