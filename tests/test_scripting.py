"""The Python interface: its signature, its types, and what it prints."""

import inspect
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import partwise
from partwise.ablation import run_comparison
from partwise.ablation.request import Request

ROOT = Path(__file__).parent.parent

TYPED = """\
import partwise
from partwise import {names}

partwise.compare("mingpt", "ffn=swiglu", seeds=2, arms=["norm=rmsnorm"], match="flops").verdicts
partwise.compare("mingpt", sedes=5)
partwise.compare("mingpt", seeds="5")
partwise.compare("mingpt", arms="norm=rmsnorm")
partwise.compare("mingpt", metric=1)
partwise.compare("mingpt").verdict
partwise.nonsense
reveal_type(partwise.run_config("mingpt").train.steps)
"""
ERRORS = {
    5: 'Unexpected keyword argument "sedes"',
    6: '"seeds"',
    7: '"arms"',
    8: '"metric"',
    9: '"verdict"',
    10: '"nonsense"',
}

OPTIONS = ["--no-implicit-reexport", "--no-error-summary", "--cache-dir", ".mypy_cache/scripting"]
"""With a cache of its own: with another option, `mypy` and this test would each discard what the other has stored."""


@pytest.mark.long
def test_types_survive_the_lazy_imports(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    source = tmp_path / "script.py"
    source.write_text(TYPED.format(names=", ".join(partwise.__all__)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *OPTIONS, str(source)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    lines = {}
    for line in done.stdout.splitlines():
        _, number, kind, text = line.split(":", 3)
        if kind.strip() == "error":
            lines[int(number)] = text
    assert lines.keys() == ERRORS.keys(), done.stdout + done.stderr
    for number, text in ERRORS.items():
        assert text in lines[number]
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.", "")


PROCESSES = {"name", "imports", "workers", "seeds_per_process", "processes_per_run"}
"""The arguments of `plan_comparison` that are not fields of a request."""


def test_compare_has_the_options_of_a_request() -> None:
    parameters = inspect.signature(partwise.compare).parameters
    hints = typing.get_type_hints(partwise.compare)
    keywords = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    fields = {name: field for name, field in Request.model_fields.items() if name not in ("preset", "change")}
    assert keywords == [*fields, "name", "imports", "workers", "seeds_per_process", "processes_per_run", "progress"]
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        assert parameters[name].default == (None if default == [] else default), name
        assert hints[name] == (field.annotation | None if default == [] else field.annotation), name


def test_compare_passes_every_keyword_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}

    class Planned(Exception):
        pass

    def plan(preset: str, *overrides: str, **settings: Any) -> None:
        passed.update(settings, preset=preset, overrides=overrides)
        raise Planned

    monkeypatch.setattr(run_comparison, "plan_comparison", plan)
    keywords = {name: object() for name in (*Request.model_fields.keys() - {"preset", "change"}, *PROCESSES)}
    with pytest.raises(Planned):
        partwise.compare("mingpt", "ffn=swiglu", "ffn.bias=true", **keywords)
    assert passed == {**keywords, "preset": "mingpt", "overrides": ("ffn=swiglu", "ffn.bias=true")}


def test_public_names_are_completed() -> None:
    assert set(partwise.__all__) <= set(dir(partwise))
    assert "__version__" in dir(partwise) and not {"Any", "TYPE_CHECKING", "importlib"} & set(dir(partwise))
