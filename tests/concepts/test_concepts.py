"""`partwise parts WORD`: every heading and term of five documents is answered, on one screen, with commands that parse."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import partwise
from partwise.cli import main
from partwise.cli.commands import compare_preset, evaluate, explain, generate, inspect, train
from partwise.cli.terminal import console
from partwise.concepts.answer import Answer, answer, concept_answer
from partwise.concepts.entries import Concept, concept_of, entries
from partwise.concepts.lookup import Match, by_name, exact, find
from partwise.concepts.results import find_claim
from partwise.concepts.settings import all_settings
from partwise.config import REGISTRY, ConfigError
from partwise.config.suggestions import normalize
from partwise.lessons.lesson import all_lessons
from partwise.train.config import run_config

TERMS = [
    line
    for line in (Path(__file__).parent / "terms.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PARTS = [
    f"{family}={name}"
    for family, recipes in REGISTRY.items()
    for name, recipe in recipes.items()
    if recipe.__module__.startswith("partwise.")
]
SCREEN, WIDTH = 22, 80
DOCS = Path(__file__).parents[2] / "docs"


def answers() -> Iterator[Answer]:
    """Of every concept, part and setting."""
    for concept in entries().concepts:
        yield answer(Match(concept.name, concept))
    for name in PARTS:
        yield answer(Match(name, name))
    for path in dict.fromkeys(each.path for each in all_settings()):
        yield answer(Match(path, [each for each in all_settings() if each.path == path]))


@pytest.fixture(scope="module")
def all_answers() -> list[Answer]:
    return list(answers())


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["partwise", "parts", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.promise
def test_every_heading_and_term_of_the_documents_is_answered() -> None:
    assert len(TERMS) > 230
    unknown = []
    for term in TERMS:
        try:
            assert normalize(term) in REGISTRY or find(term)
        except ConfigError:
            unknown.append(term)
    assert unknown == []


def test_the_words_of_lessons_are_answered() -> None:
    """Those in bold that are a term, not the start of a sentence; and those of verdicts and exercises."""
    bold = {
        term.lower().removeprefix("the ")
        for lesson in all_lessons().values()
        for term in re.findall(r"\*\*([A-Za-z][\w -]*)\*\*", "".join(lesson.sections.values()))
        if len(term.split()) <= 2
    }
    assert len(bold) > 25
    for term in (bold - {"ladder"}) | {"nats", "interval", "power", "equivalent", "undecided", "margin"}:
        assert find(term), term


def test_every_answer_fits_a_screen(
    all_answers: list[Answer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "width", WIDTH)
    long = {}
    for each in all_answers:
        explain.print_answer(each, [])
        lines = capsys.readouterr().out.splitlines()
        if (height := sum(-(-max(len(line), 1) // WIDTH) for line in lines)) > SCREEN:
            long[each.title] = height
    assert long == {}


SYMBOL = re.compile(r"(?<![A-Za-z'`])[A-Za-z]\d*(?![A-Za-z\d]|_[A-Za-z]{2}|-gram)")
ARTICLE = re.compile(r"\b[aA] (?=`?[A-Za-z]{3}|UTF)")


def symbols_of(equation: str) -> set[str]:
    """The single letters of an equation, such as `w` or `b1`, without the article and the names of settings."""
    return set(SYMBOL.findall(ARTICLE.sub("", equation)))


def test_the_symbols_of_every_equation_are_explained() -> None:
    unexplained = {}
    cases = [(each, each.part_names[0] if len(each.part_names) == 1 else None) for each in entries().concepts]
    for concept, name in [*cases, *((concept_of(name), name) for name in PARTS)]:
        rows = concept_answer(concept, name, results=False).rows
        explained = {part.partition(":")[0] for part in rows.get("where", "").split("; ")}
        if missing := symbols_of(rows.get("equation", "")) - explained:
            unexplained[name or (concept and concept.name)] = missing
    assert unexplained == {}


def test_every_part_belongs_to_a_concept_with_two_sentences_of_intuition() -> None:
    assert [name for name in PARTS if concept_of(name) is None] == []
    for concept in entries().concepts:
        assert re.fullmatch(r"[^.!?].*[.!?]", concept.why) and len(concept.why) < 400, concept.name
        assert 1 <= len(re.findall(r"[.!?](?= [A-Z0-9]|$)", concept.why)) <= 3, concept.name


def test_files_parts_settings_and_claims_exist(all_answers: list[Answer]) -> None:
    root = Path(partwise.__file__).parents[2]
    for each in all_answers:
        assert "file" not in each.rows or (root / each.rows["file"]).is_file(), each
    paths = {each.path for each in all_settings()}
    for concept in entries().concepts:
        assert {*concept.settings} <= paths and {*concept.part_names} <= {*PARTS}, concept.name
        assert all(find_claim(each).effect.low is not None for each in concept.results), concept.name


def test_a_word_belongs_to_one_concept() -> None:
    shared = {
        name: [each.label for each in matches]
        for name, matches in by_name().items()
        if sum(isinstance(each.what, Concept) for each in matches) > 1
    }
    assert shared == {}


def test_every_command_parses_and_its_configuration_can_be_built(
    all_answers: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for module, name in (
        (compare_preset, "show_estimate"),
        (train, "train_run"),
        (generate, "generate_text"),
        (evaluate, "evaluate_run"),
        (inspect, "inspect_target"),
    ):
        monkeypatch.setattr(module, name, lambda *args, **options: None)
    wrong = {}
    for command in dict.fromkeys(each.rows["try"] for each in all_answers if "try" in each.rows):
        words = shlex.split(command)[1:]
        if words[0] in ("train", "inspect"):
            overrides = [word for word in words[2:] if "=" in word]
            run_config(words[1], *overrides, data=words[words.index("--data") + 1] if "--data" in words else None)
        if words[0] == "calibrate":
            continue  # an option of it is tested by its own tests; it has no dry run
        monkeypatch.setattr(sys, "argv", ["partwise", *words, *(["--dry-run"] if words[0] == "compare" else [])])
        with pytest.raises(SystemExit) as ended:
            main()
        if error := capsys.readouterr().err if ended.value.code else "":
            wrong[command] = error
    assert wrong == {}


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        (
            "RoPE",
            ["RoPE: positions=rope", "w_i = theta^(-2i/E)", "E: width of a head", "arXiv:2104.09864", "lesson   3"],
        ),
        ("dying ReLU", ["max(0, u)", "lesson   4", "partwise inspect mingpt activations"]),
        ("train.lr", ["number > 0", "0.0003", "The peak learning rate; `schedule` multiplies it"]),
        ("d_model", ["Width of the residual stream", "12 L D^2"]),
        ("geglu", ["ffn=geglu", "gelu(gate(x)) * up(x)", "study glu", "equivalent"]),
        ("warm_up", ["schedule.warmup"]),
        ("rotary", ["RoPE: positions=rope"]),
        ("theta", ["positions.theta", "positions=rope_yarn", "The base of the frequencies"]),
        ("mixture of experts", ["ffn=moe", "parts/feed_forward/moe.py"]),
        ("block_size", ["context_length"]),
        ("seed SD", ["standard deviation"]),
        ("gpt2", ["GPT", "also     init=gpt2"]),
        ("num_key_value_heads", ["attention.n_kv_heads"]),
    ],
)
def test_a_word_gets_its_answer(
    word: str, texts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(monkeypatch, capsys, *word.split())
    assert [text for text in texts if text not in out] == []


def test_a_concept_names_its_lesson_as_the_page_does() -> None:
    """The title is read from the page; a lesson without a page is named by its number."""
    assert {each.lesson for each in entries().concepts} <= {None, *range(1, 13)}
    for each in (each for each in entries().concepts if each.lesson):
        row = concept_answer(each, None, results=False).rows["lesson"]
        page = next((DOCS / "lessons").glob(f"{each.lesson:02}-*.md"), None)
        if page is None:
            assert row == str(each.lesson)
        else:
            heading = re.search(r"^# \d+\. (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading and row == f'{each.lesson}, "{heading[1]}"'


def test_the_result_of_a_concept_is_that_of_the_page_of_all_claims(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(shown(monkeypatch, capsys, "weight", "tying").split())
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| shakespeare | tie_embeddings=false")]
    assert re.search(r"result \+(\S+ \(\S+ to \S+\))", out)[1] in row  # type: ignore[index]


def test_an_ambiguous_word_lists_what_it_may_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(monkeypatch, capsys, "bias").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["attention.bias", "ffn.bias", "norm.bias"]
    heading = shown(monkeypatch, capsys, "2.4 Transformer Block (Pre-Norm)")
    assert "transformer block" in heading and "pre-norm" in heading


def test_an_unknown_word_has_suggestions_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["partwise", "parts", "perplexty"])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "did you mean 'perplexity'" in error and len(error.splitlines()) == 1


def test_spellings_of_the_field_are_one_word() -> None:
    for words in (
        ("pre-norm", "PreNorm", "pre norm"),
        ("feed-forward layer", "feedforward layers", "FeedForward Layer"),
    ):
        assert len({exact(word)[0].label for word in words}) == 1


@pytest.mark.parametrize(
    ("word", "there", "absent"),
    [
        ("KV cache", ["0.0005 (", "study kv-heads", "inspect llama3 cost"], ["inspect llama3 memory"]),
        ("warm-up", ["no warm-up, pre-norm: +0.0023", "no warm-up, post-norm: -0.0171", "undecided"], []),
        ("dying ReLU", ["inspection/dead_units.py", "ffn.bias=true init=dead_units"], ["study glu", "no step ever"]),
        ("RoPE", ["learned instead of RoPE", "2.7 million", "theta=10000", "src/partwise/parts/"], ["1e+04"]),
        ("$", ["example", "(1663.78, padded and reversed)", "data.reverse"], ["equation"]),
        ("train.lr", ["The peak learning rate", "see ", "src/partwise/train/config.py"], ["\n  why "]),
        ("residual=none", ["no residual connections: residual=none"], []),
    ],
)
def test_an_answer_is_about_its_word(
    word: str, there: list[str], absent: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(monkeypatch, capsys, *word.split())
    lines = " ".join(out.split())
    assert [text for text in there if text not in lines] == [] and [text for text in absent if text in out] == []
