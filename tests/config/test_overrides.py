"""Overrides, configuration files, and their one-line error messages."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import Field
from torch import nn

import partwise
from partwise.config import REGISTRY, Config, ConfigError, Part, digest, find_part, import_parts, part
from partwise.config.overrides import apply_overrides, difference, distinct, flatten, parse_overrides
from partwise.config.yaml import parse_value, read_yaml
from partwise.parts.contracts import FeedForward, Norm
from partwise.train.config import RunConfig, default_settings, preset_settings, run_config
from recipes import recipes, tokens

relaxed: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],  # shrinking and explaining a failure takes minutes
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
}
EVERY_PART = [(family, name) for family in REGISTRY for name in REGISTRY[family]]
SPLITS = {"train": 10, "validation": 10, "test": 10}


def changed(*words: str, start: str = "mingpt") -> dict[str, Any]:
    return run_config(start, *words, data="arithmetic").to_dict()


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        changed(*words)
    message = str(caught.value)
    assert message.strip() and len(message.splitlines()) == 1
    return message


# The semantics of an override


def test_a_replacement_drops_the_old_options() -> None:
    assert changed()["ffn"] == {**changed("ffn=relu")["ffn"]}
    tuned = changed("ffn.expansion=7", "ffn.bias=true")
    assert tuned["ffn"]["expansion"] == 7 and tuned["ffn"]["bias"] is True
    assert run_config("mingpt", "ffn=geglu", data="arithmetic").model.ffn == find_part("ffn", "geglu")()
    # naming the same part again also resets it to its defaults: mingpt has 8 heads
    assert changed()["attention"]["n_heads"] == 8
    assert changed("attention=multihead")["attention"] == find_part("attention", "multihead")().to_dict()


def test_options_change_the_current_part() -> None:
    before, after = changed(), changed("attention.n_heads=4")
    assert difference(before, after) == [("attention.n_heads", 8, 4)]
    assert changed("ffn=swiglu", "ffn.beta=2")["ffn"]["beta"] == 2.0


@pytest.mark.parametrize(
    "words",
    [
        ["ffn=swiglu", "ffn.expansion=4", "train.lr=1e-3"],
        ["ffn.expansion=4", "train.lr=1e-3", "ffn=swiglu"],
        ["--ffn.expansion=4", "--ffn=swiglu", "--train.lr=0.001"],
        ["ffn={part: swiglu, expansion: 4}", "train={lr: 1e-3}"],
        ["ffn={expansion: 4}", "ffn.part=swiglu", "train.lr=1E-3"],
        ["ffn={expansion: 4, part: swiglu}", "train.lr=.001"],
        ["ffn=swiglu", "ffn.expansion=4", "ffn.expansion=4", "train.lr=1e-3"],
    ],
)
def test_replacements_come_first_in_any_order(words: list[str]) -> None:
    expected = {**find_part("ffn", "swiglu")().to_dict(), "expansion": 4.0}
    assert changed(*words) == {**changed(), "ffn": expected, "train": {**changed()["train"], "lr": 1e-3}}


def test_a_name_given_as_an_option_replaces_too() -> None:
    """Otherwise the new part would silently keep the old part's options."""
    assert changed("ffn.expansion=7")["ffn"]["expansion"] == 7
    base = changed("ffn.expansion=7")
    for words in (["ffn.part=swiglu"], ["ffn={part: swiglu}"], ["ffn=swiglu"]):
        assert apply_overrides(base, parse_overrides(words))["ffn"] == "swiglu"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ffn=relu", "norm=l2", "ffn=gelu"],
            "ffn is given twice, as relu and gelu: keep one; in compare, --arm ffn=gelu adds",
        ),
        (["ffn=relu", "ffn.part=gelu"], "ffn is given twice, as relu and gelu"),
        (["--train.lr=1e-3", "train={lr: 1e-4}"], "train.lr is given twice, as 0.001 and 0.0001: keep one"),
        (["ffn={part: relu, expansion: 2}", "ffn.expansion=4"], "ffn.expansion is given twice, as 2 and 4: keep one"),
        (["data=shakespeare"], "data is given twice, as arithmetic and shakespeare: keep one"),
    ],
)
def test_a_path_with_two_values_is_refused(words: list[str], message: str) -> None:
    """Whichever counted, the experiment would be another than the words say."""
    with pytest.raises(ConfigError) as caught:
        distinct([(("data",), "arithmetic"), *parse_overrides(words)])
    assert str(caught.value).startswith(message)


def test_a_file_gives_each_path_once(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    for text, key in (
        ("ffn: relu\nffn.part: gelu", "ffn"),
        ("train: {lr: 1}\ntrain.lr: 2", "train.lr"),
        ("data: arithmetic\ndata.part: python", "data"),
    ):
        path.write_text(f"preset: mingpt\n{text}\n")
        with pytest.raises(ConfigError, match=f"^{key} is given twice"):
            preset_settings(str(path))
    path.write_text("preset: mingpt\nffn: relu\nffn: gelu\n")
    with pytest.raises(ConfigError, match="duplicate key among"):
        preset_settings(str(path))
    path.write_text("preset: mingpt\nffn: gelu\ntie_embeddings: True\n")  # a file changes its preset
    assert preset_settings(str(path))["ffn"] == "gelu" and preset_settings(str(path))["tie_embeddings"] is True


def test_booleans_as_python_writes_them() -> None:
    for word, value in (("True", True), ("False", False), ("true", True)):
        made = changed(f"tie_embeddings={word}", f"ffn={{part: relu, bias: {word}}}", f"attention.bias={word}")
        assert [made["tie_embeddings"], made["ffn"]["bias"], made["attention"]["bias"]] == [value] * 3
    assert "yes" in refused("tie_embeddings=yes")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2", -2),
        ("+3", 3),
        ("010", 10),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("true", True),
        ("false", False),
        *((word, word) for word in ("True", "yes", "no", "on", "off", "y", "n", "nan", ".inf", "NULL", "None")),
        ("null", None),
        ("~", None),
        ("", None),
        ("relu", "relu"),
        ('"3"', "3"),
        ("-", "-"),
        ("- a", "- a"),
        ("-3", -3),
        ("[1, a]", [1, "a"]),
        ("{part: relu, expansion: 2}", {"part": "relu", "expansion": 2}),
        ("[1", "[1"),
        ("!!int abc", "!!int abc"),
        ("!!python/name:os.system", "!!python/name:os.system"),
        ("&a [*a]", "&a [*a]"),
        ("{a: 1, a: 2}", "{a: 1, a: 2}"),
        ("9" * 5000, "9" * 5000),
        ("[" * 3000, "[" * 3000),
        ("a\0b", "a\0b"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values_are_read_as_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)


def test_a_part_is_a_name_a_mapping_or_a_recipe() -> None:
    swiglu = find_part("ffn", "swiglu")
    for value in ("swiglu", {"part": "swiglu"}, swiglu(), {"part": "swiglu", "expansion": 8 / 3}):
        assert partwise.ModelConfig(ffn=value).ffn == swiglu()
        assert partwise.ModelConfig.from_dict({"ffn": value}) == partwise.ModelConfig(ffn=swiglu())
    assert partwise.ModelConfig(ffn={"part": "swiglu", "expansion": 4}).ffn == swiglu(expansion=4)


def test_recipes_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        partwise.ModelConfig().d_model = 3
    with pytest.raises(ValueError, match="frozen"):
        find_part("ffn", "relu")().expansion = 3


def test_the_vocabulary_size_of_a_preset_can_be_overridden() -> None:
    assert partwise.preset("mingpt", vocab_size=30).vocab_size == 30
    assert partwise.preset("mingpt", "vocab_size=100").vocab_size == 100


# YAML files

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "d_model": st.sampled_from([16, 32, 96]),
    "n_layers": st.integers(1, 3),
    "tie_embeddings": st.booleans(),
    "embed_dropout": st.floats(0, 0.9),
    "ffn": st.sampled_from(sorted(name for name, recipe in REGISTRY["ffn"].items() if "bias" in recipe.model_fields)),
    "ffn.hidden": st.none() | st.integers(1, 30),
    "ffn.bias": st.booleans(),
    "attention.n_heads": st.sampled_from([1, 2, 4]),
    "attention.scale": st.none() | st.floats(1e-9, 1e9),
    "norm": st.sampled_from(sorted(REGISTRY["norm"])),
    # mup does not support tied embeddings, and dead_units needs ffn.bias
    "init": st.sampled_from(sorted(set(REGISTRY["init"]) - {"mup", "dead_units"})),
    "schedule": st.sampled_from(sorted(REGISTRY["schedule"])),
    "schedule.warmup": st.integers(0, 10**6),
    "train.lr": st.floats(1e-300, 1e300) | st.integers(1, 5),
    "train.grad_clip": st.none() | st.floats(1e-9, 1e9),
    "train.seed": st.integers(0, 10**20),
    "train.precision": st.sampled_from(["auto", "float32"]),
    "data.operations": st.sampled_from(["+", "+-", "*/", "-"]),
    "tokenizer": st.sampled_from(["characters", "bytes"]),
    "vocab_size": st.integers(256, 1000),
}


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """The options of a part or group nested below its name, as written in a file."""
    nested: dict[str, Any] = {}
    for key in sorted(flat, reverse=True):
        head, _, option = key.partition(".")
        if option:
            nested.setdefault(head, {})[option] = flat[key]
        elif head in nested:
            nested[head]["part"] = flat[key]
        else:
            nested[head] = flat[key]
    return nested


@settings(max_examples=40, **relaxed)
@given(flat=st.fixed_dictionaries({}, optional=OPTIONS), data=st.data())
def test_a_file_and_the_command_line_mean_the_same(flat: dict[str, Any], data: st.DataObject, tmp_path: Path) -> None:
    words = [f"{key}={'null' if value is None else json.dumps(value)}" for key, value in flat.items()]
    expected = changed(*data.draw(st.permutations(words)))
    for number, content in enumerate((nest(flat), flat)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump({"preset": "mingpt", "data": "arithmetic", **content} | merge_data(content)))
        assert run_config(str(file)).to_dict() == expected
    assert digest(run_config(str(file)).to_dict()) == digest(expected)


def merge_data(content: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"part": "arithmetic", **content["data"]}} if isinstance(content.get("data"), dict) else {}


def test_a_file_may_start_from_a_preset_or_a_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yml"
    first.write_text("preset: mingpt\nffn: {part: swiglu, expansion: 4}\ndata: arithmetic\ntrain:\n  lr: 3e-4\n")
    second.write_text(f"preset: {first}\nffn.beta: 2\nn_layers: 010\n")
    found = run_config(str(second), "train.lr=1").to_dict()
    assert found == changed("ffn=swiglu", "ffn.expansion=4", "ffn.beta=2", "n_layers=10", "train.lr=1")
    plain = tmp_path / "plain.yaml"
    plain.write_text("data: arithmetic\n")
    assert preset_settings(str(plain)) == apply_overrides(default_settings(), flatten({"data": "arithmetic"}))


def test_a_file_can_name_a_text_like_the_command_line(tmp_path: Path) -> None:
    text, file = tmp_path / "notes.txt", tmp_path / "mine.yaml"
    text.write_text("hello world\n" * 40)
    file.write_text(f"preset: mingpt\ndata: {text}\n")
    expected = run_config("mingpt", data=str(text)).to_dict()
    assert expected["data"] == {"part": "text", "path": str(text), "mask_rate": 0.0}
    assert run_config(str(file)).to_dict() == run_config("mingpt", f"data={text}").to_dict() == expected


@pytest.mark.parametrize(
    ("content", "part_of_message"),
    [
        ("- a\n- b\n", "expected a mapping"),
        ("", "expected a mapping"),
        ("a: [1\nb: 2\n", "is not YAML"),
        ("ffn: relu\nffn: swiglu\n", "duplicate key"),
        ("a: &x {b: 1}\nc: *x\n", "aliases"),
        ("preset: mingtp\n", "did you mean 'mingpt'"),
        ("preset: [1]\n", "unknown preset"),
        ("preset: SELF\n", "is circular"),
        ("preset: mingpt\nfnn: relu\n", "did you mean 'ffn'"),
        ("a: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        ("train:\n", "expected options"),
        ("1: 2\n", "unknown option '1'"),
        ("{a: b}: 2\n", "is not YAML"),
        ('"a\\nb": 2\n', r"unknown option 'a\nb'"),
        ('ffn: {"a\\nb": {c: 2}}\n', "has no options"),
        ('ffn: "a\\nb"\n', 'unknown part ffn="a\\nb"'),
    ],
)
def test_a_bad_file_is_refused_in_one_line(content: str, part_of_message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content.replace("SELF", str(file)))
    with pytest.raises(ConfigError) as caught:
        run_config(str(file), data="arithmetic")
    assert part_of_message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", "binary.yaml"):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
            read_yaml(tmp_path / name)


# Invalid overrides


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fnn=swiglu", "unknown option 'fnn'; did you mean 'ffn'? (known: attention"),
        ("ffn=swigul", "unknown part ffn=swigul; did you mean 'swiglu'? (known: bilinear, "),
        ("ffn.expansoin=4", "unknown option 'ffn.expansoin'; did you mean 'expansion'? (known: bias, expansion"),
        ("ffn=relu ffn.beta=4", "unknown option 'ffn.beta'"),
        ("trian.lr=4", "unknown option 'trian.lr'; did you mean train.lr=4?"),
        ("train.stpes=4", "unknown option 'train.stpes'; did you mean 'steps'?"),
        ("schedule=cosin", "unknown part schedule=cosin; did you mean 'cosine'?"),
        ("d_model=wide", "d_model=wide: input should be a valid integer"),
        ("d_model=96.5", "d_model=96.5: input should be a valid integer"),
        ("d_model=true", "d_model=true: "),
        ("d_model=0", "d_model=0: input should be greater than 0"),
        ("d_model=null", "d_model=null: "),
        ("d_model=[1,2]", "d_model=[1, 2]: "),
        ("d_model={a: 1}", "d_model.a: d_model has no options"),
        ("d_model.x=1", "d_model.x: d_model has no options"),
        ("tie_embeddings=1", "tie_embeddings=1: input should be a valid boolean"),
        ("ffn.bias=no", "ffn.bias=no: input should be a valid boolean"),
        ("ffn.expansion=-1", "ffn.expansion=-1: input should be greater than 0"),
        ("ffn.expansion=1e999", "ffn.expansion=Infinity: input should be a finite number"),
        ("ffn.expansion=.nan", "ffn.expansion=.nan: input should be a valid number"),
        ("ffn=gelu ffn.approximate=tan", "ffn.approximate=tan: input should be 'none' or 'tanh'"),
        ("ffn=3", "ffn=3: expected a part's name"),
        ("ffn=null", "ffn=null: expected a part's name"),
        ("ffn=[relu]", "ffn lists 1 parts for 8 layers: give one for each"),
        ("ffn={cycle: []}", "ffn={"),
        ("norm=[rmsnorm]", 'norm=["rmsnorm"]: expected a part\'s name'),
        ("ffn={}", "ffn={}: expected a part's name"),
        ("ffn={part: 3}", "ffn=3: expected a part's name"),
        ("train=fast", "train=fast: expected options, as in train.OPTION=VALUE"),
        ("train.lr=0", "train.lr=0: input should be greater than 0"),
        ("train.seed=-1", "train.seed=-1: input should be greater than or equal to 0"),
        ("train.device=tpu", "train.device=tpu: input should be 'auto', 'cpu', 'cuda' or 'mps'"),
        ("vocab_size=many", "vocab_size=many: input should be a valid integer"),
        ("vocab_size=true", "vocab_size=true: input should be a valid integer"),
        ("vocab_size=3", "vocab_size=3 is smaller than the data's vocabulary, 19"),
        ("train.seq_len=129", "train.seq_len=129 exceeds context_length=128"),
        ("train.grad_accumulation=3", "train.grad_accumulation=3 does not divide train.batch_size=16"),
        ("attention.n_heads=7", "attention.n_heads=7 does not divide d_model=96"),
        ("attention.n_kv_heads=3", "attention.n_kv_heads=3 does not divide attention.n_heads=8"),
        ("positions=rope d_model=24", "positions=rope needs an even head dimension, not 3"),
        ("positions=sinusoidal d_model=9 attention.n_heads=3", "positions=sinusoidal needs an even d_model, not 9"),
        ("ffn.expansion=0.001", "ffn.expansion=0.001 rounds to no hidden unit at d_model=96"),
        ("d_model=1000000000000", "d_model=1000000000000: input should be less than or equal to 1048576"),
        ("n_layers=1000000000", "n_layers=1000000000: input should be less than or equal to 1000"),
        ("ffn", "'ffn' is not an override: write KEY=VALUE"),
        ("=3", "'=3' is not an override"),
        ("ffn..bias=3", "'ffn..bias=3' is not an override"),
        ("---ffn=relu", "'---ffn=relu' is not an override"),
        ("preset=llama", "unknown option 'preset'"),
    ],
)
def test_one_line_names_the_path_and_the_remedy(words: str, expected: str) -> None:
    parts = [words] if any(mark in words for mark in "[{") else words.split()
    assert refused(*parts).startswith(expected)


def test_an_unknown_preset() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'lama'; did you mean 'llama'"):
        run_config("lama")


@pytest.mark.parametrize(
    "value",
    ['"a\\nb"', '"\\u2028"', '"\\ud800"', "|\n a\n b", "x" * 100_000, "!!set {a, b}", "[{!!timestamp 2001-01-01: 1}]"],
)
def test_odd_values_are_shown_on_one_short_line(value: str) -> None:
    for key in ("d_model", "ffn", "ffn.expansion", "train.device", "train", "tokenizer"):
        message = refused(f"{key}={value}")
        assert len(message) < 600 and message.encode()


KEYS = [
    "ffn",
    "ffn.hidden",
    "d_model",
    "train",
    "train.lr",
    "data",
    "data.limit",
    "data.part",
    "vocab_size",
    "tokenizer",
]
JUNK = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["{part: relu}", "{part: {part: a}}", "[[", "{a: {b: c}}", "!!binary x", "1e999", "-0", "&a [*a]"]),
    st.integers().map(str),
    st.floats().map(repr),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab.part", max_size=4), inner, max_size=2),
        max_leaves=4,
    ).map(json.dumps),
)
WORDS = st.one_of(
    st.text(max_size=20),
    st.builds("{}={}".format, st.sampled_from(KEYS), JUNK),
    st.builds("{}.{}={}".format, st.sampled_from(KEYS), st.text("abpart_.", max_size=5), JUNK),
)


@settings(max_examples=250, **relaxed)
@given(words=st.lists(WORDS, min_size=1, max_size=3))
def test_junk_either_works_or_is_refused_in_one_line(words: list[str]) -> None:
    try:
        found = run_config("mingpt", *words, data="arithmetic")
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert RunConfig.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@settings(max_examples=150, **relaxed)
@given(
    content=st.binary(max_size=60)
    | st.lists(WORDS, max_size=3).map(lambda words: "\n".join(words).encode(errors="replace").replace(b"=", b": "))
)
def test_junk_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "junk.yaml"
    file.write_bytes(content)
    try:
        run_config(str(file), data="arithmetic")
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1


# Round trips and differences


@pytest.mark.parametrize(("family", "name"), EVERY_PART)
@settings(max_examples=15, **relaxed)
@given(data=st.data())
def test_every_part_survives_json(family: str, name: str, data: st.DataObject) -> None:
    values = data.draw(recipes(family, name, small=False))
    kind = find_part(family, name)
    root = next(each for each in kind.__mro__ if "family" in each.__dict__)
    Holder: Any = type("Holder", (Config,), {"__annotations__": {"held": root}, "__module__": __name__})
    try:
        recipe = kind.from_dict({key: value for key, value in values.items() if key != "part"})
    except ConfigError:
        return  # an invalid combination of options
    assert recipe.to_dict() == values and type(recipe) is kind
    holder = Holder(held=recipe)
    for text in (json.dumps(holder.to_dict()), holder.model_dump_json()):
        assert json.loads(text) == {"held": values}, "a recipe must not be dumped as its family, which has no fields"
        back = Holder.from_dict(json.loads(text))
        assert back == holder and type(back.held) is kind
    assert Holder.from_dict({"held": values}) == holder and hash(back.held) == hash(recipe)
    rebuilt = apply_overrides({"held": "other"}, flatten({"held": values})) if family == "held" else {"held": values}
    assert digest(rebuilt) == digest(holder.to_dict())


def test_a_missing_required_field_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^'data\.path' is missing: give it a value, as in data\.path=\.\.\."):
        run_config("mingpt", "data=text")


def test_difference_lists_the_options_removed_by_a_swap() -> None:
    old = changed("ffn=gelu", "ffn.approximate=tanh", "ffn.bias=true", "ffn.expansion=5")
    new = changed("ffn=swiglu", "d_model=48")
    assert difference(old, new) == [
        ("d_model", 96, 48),
        ("ffn", "gelu", "swiglu"),
        ("ffn.expansion", 5.0, 8 / 3),
        ("ffn.bias", True, False),
        ("ffn.approximate", "tanh", None),
        ("ffn.beta", None, 1.0),
        ("ffn.trainable_beta", None, False),
    ]
    assert difference(new, new) == []
    # a removed option is listed even if its value was null
    before, after = {"ffn": {"part": "one", "hidden": None}}, {"ffn": {"part": "two"}}
    assert difference(before, after) == [("ffn", "one", "two"), ("ffn.hidden", None, None)]


@settings(max_examples=40, **relaxed)
@given(one=recipes("ffn"), other=recipes("ffn"))
def test_difference_is_complete(one: dict[str, Any], other: dict[str, Any]) -> None:
    rows = {path: (before, after) for path, before, after in difference({"ffn": one}, {"ffn": other})}
    for key in one.keys() | other.keys():
        pair, path = (one.get(key), other.get(key)), "ffn" if key == "part" else f"ffn.{key}"
        if pair[0] != pair[1] or (key in one) != (key in other):
            assert rows.pop(path) == pair
    assert not rows


@pytest.mark.parametrize(("old", "new"), [({"x": 1}, 2), (2, {"x": 1}), ({}, "a"), ("swiglu", {"part": "swiglu"})])
def test_a_mapping_in_place_of_a_scalar_is_one_difference(old: Any, new: Any) -> None:
    assert difference({"a": old}, {"a": new}) == [("a", old, new)]


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


# Custom parts

MINE = """
from torch import nn
from partwise.config import part
from partwise.parts.contracts import FeedForward

@part("mine")
class Mine(FeedForward):
    '''x + shift.'''
    shift: float = 1.0

    def build(self, layer_ctx):
        return Shift(self.shift)

class Shift(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = nn.Parameter(nn.init.constant_(nn.Parameter(__import__("torch").empty(1)), shift))

    def forward(self, x, ctx=None):
        return x + self.shift
"""


def test_parts_from_a_file_work_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "types.py"  # has the name of a standard library module, which must not be shadowed
    file.write_text(MINE)
    standard = sys.modules["types"]
    import_parts(str(file))
    import_parts(str(file))  # importing twice is not an error
    assert sys.modules["types"] is standard
    config = run_config("mingpt", "ffn=mine", "ffn.shift=3", data="arithmetic")
    assert config.to_dict()["ffn"] == {"part": "mine", "shift": 3.0}
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    model = partwise.Transformer(config.model)
    assert model(tokens()).shape == (2, 6, 19)
    assert model.state_dict()["blocks.0.ffn.shift"].item() == 3.0
    study = tmp_path / "run.yaml"
    study.write_text("preset: mingpt\nffn: {part: mine, shift: 3}\ndata: arithmetic\n")
    assert run_config(str(study)) == config
    assert refused("ffn=mine", "ffn.shfit=2").startswith("unknown option 'ffn.shfit'; did you mean 'shift'?")


def test_a_configuration_is_checked_once_if_it_is_valid_and_each_time_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = []
    monkeypatch.setattr("partwise.model.transformer.Transformer", lambda config: built.append(config))
    for _ in range(2):
        partwise.ModelConfig(d_model=72, n_layers=3)
    assert len(built) == 1
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(ConfigError, match="n_heads"):
            partwise.ModelConfig.from_dict({"d_model": 72, "attention": {"part": "multihead", "n_heads": 5}})


def test_an_option_of_a_part_may_be_a_list() -> None:
    class Scaled(Norm):
        factors: list[float] = Field(default_factory=lambda: [2.0])

        def build(self, width: int) -> nn.Module:
            if self.factors == [0.0]:
                raise ConfigError("factors=[0.0]: expected another")
            return nn.LayerNorm(width)

    part("scaled")(Scaled)
    try:
        assert partwise.ModelConfig(norm=Scaled()).norm == Scaled()
        with pytest.raises(ConfigError, match="expected another"):
            partwise.ModelConfig(norm=Scaled(factors=[0.0]))
    finally:
        del REGISTRY["norm"]["scaled"]


def test_parts_from_a_module_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_my_own.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    import_parts("parts_of_my_own")
    assert find_part("ffn", "mine").__module__ == "parts_of_my_own"
    del sys.modules["parts_of_my_own"]


def test_the_error_for_an_unknown_part_of_a_checkpoint_mentions_import(tmp_path: Path) -> None:
    values = {**partwise.ModelConfig().to_dict(), "ffn": {"part": "theirs", "width": 3}}
    with pytest.raises(ConfigError, match=r"unknown part ffn=theirs.*--import FILE") as caught:
        partwise.ModelConfig.from_dict(json.loads(json.dumps(values)))
    assert len(str(caught.value).splitlines()) == 1


def test_names_are_unique_within_a_family(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ffn=swiglu is already registered: choose another name"):

        @part("swiglu")
        class SwiGLU(FeedForward):  # the name of the class does not matter
            pass

    assert find_part("ffn", "swiglu").__module__ == "partwise.parts.feed_forward.dense"
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(MINE)
    import_parts(str(tmp_path / "first.py"))
    with pytest.raises(ConfigError, match="ffn=mine is already registered"):
        import_parts(str(tmp_path / "second.py"))
    part("swiglu")(type("Swi", (Norm,), {"__module__": __name__}))  # the name is free in another family


@pytest.mark.parametrize("name", ["3", "true", "null", "", "a: b", "[x]", "1e3", "a\nb", " a"])
def test_the_name_of_a_part_must_be_usable_in_an_override(name: str) -> None:
    with pytest.raises(ConfigError, match=r"ffn=.* would not be read as a part's name: use a plain word"):
        part(name)(type("Odd", (FeedForward,), {"__module__": __name__}))


def test_a_part_needs_a_family() -> None:
    with pytest.raises(ConfigError, match="the part 'homeless' has no family"):
        part("homeless")(type("Homeless", (Part,), {"__module__": __name__}))


def test_a_part_of_another_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="ffn=rmsnorm: this part belongs to the family 'norm'"):
        partwise.ModelConfig(ffn=find_part("norm", "rmsnorm")())
    assert refused("ffn=rmsnorm").startswith("unknown part ffn=rmsnorm")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x = (", "SyntaxError"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise ValueError('a\\nb')", "ValueError: a b"),
    ],
)
def test_a_file_that_fails_to_import_is_explained(content: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(content)
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=expected) as caught:
        import_parts(str(file))
    assert len(str(caught.value).splitlines()) == 1 and str(file) in str(caught.value)
    assert not any("broken" in name for name in set(sys.modules) - before)


@pytest.mark.parametrize("source", ["no/such/file.py", "no_such_module", "", ".relative", "a b", "a\nb", "a\0b.py"])
def test_an_invalid_import_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(ConfigError, match="--import ") as caught:
        import_parts(source)
    assert len(str(caught.value).splitlines()) == 1


def test_numbers_survive_json_exactly() -> None:
    values = json.loads(json.dumps(changed("train.lr=3e-4", "ffn.expansion=2.6666666666666665")))
    assert values["train"]["lr"] == 3e-4 and math.isclose(values["ffn"]["expansion"], 8 / 3, rel_tol=0)
