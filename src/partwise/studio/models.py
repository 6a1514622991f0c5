"""The runs of the folder as pages show them: facts from their files, inspections and text from the command line."""

import re
import shlex
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.checkpoint import list_checkpoints, step_of
from partwise.config import ConfigError
from partwise.config.reading import read_file
from partwise.inspection.inspections import INSPECTIONS
from partwise.machine import is_alive
from partwise.records import DamagedFileError, Record, read_bytes, read_record
from partwise.run_names import check_run_name, lock_owner
from partwise.studio.processes import Processes
from partwise.train.metrics import METRICS, parse_line

MAX_AT_ONCE = 2
"""Inspections and texts at a time: each loads a model."""
MAX_SECONDS = 1800.0
"""The longest inspection or text."""
MAX_PROMPT, MAX_NEW_TOKENS = 4000, 1000
MAX_READ = 1 << 28
"""Bytes of a run's metrics that are read: more than a million steps."""
REPORT = "report.html"
PAGE_NAME = r"(report|inspect-[A-Za-z0-9._=+,~@-]{1,240})\.html"
"""The pages of a run: its report, and its inspections."""

LIMITS: dict[str, tuple[type, float, float]] = {
    "max_new_tokens": (int, 1, MAX_NEW_TOKENS),
    "temperature": (float, 0, 1000),
    "top_k": (int, 1, 10**9),
    "top_p": (float, 0, 1),
    "seed": (int, 0, 2**53),
    "seq_len": (int, 1, 10**6),
    "layer": (int, 0, 10**6 - 1),
    "head": (int, 0, 10**6 - 1),
}
"""Type and range of every number of a page."""


@dataclass
class Models:
    """The runs directly below `runs/` of a folder."""

    folder: Path
    processes: Processes
    imports: tuple[str, ...] = ()
    """The modules that the studio was started with, which every command gets too."""
    running: int = 0

    def path(self, name: str) -> Path:
        """The folder of a run. Raises ConfigError for what is none, or leads elsewhere."""
        path = self.folder / "runs" / check_run_name(name)
        if path.is_symlink() or path.parent.is_symlink():
            raise ConfigError(f"{path} is a symbolic link, which is not followed")
        if not (path / "run.json").is_file():
            raise ConfigError(f"no run is named {name}: its folder may have been moved or deleted")
        return path

    def facts(self, name: str) -> dict[str, Any]:
        """What the page of a run shows, from its JSON files alone. Raises ConfigError."""
        path = self.path(name)
        try:
            metadata = read_record(path / "run.json")
            config, parameters = metadata.record("config"), metadata.whole("parameters")
            train, imported = config.record("train"), "imported" in metadata
            steps = train.whole("steps")
            words = metadata.texts("command") if "command" in metadata else []
            ended = read_record(path / "result.json") if (path / "result.json").exists() else None
        except DamagedFileError as error:
            raise ConfigError(str(error)) from None
        saved = [step_of(each) for each in list_checkpoints(path / "checkpoints")]
        step, evaluations = read_progress(path)
        state = "imported" if imported else ending(path, ended)
        command = words[0] if len(words) == 1 else shlex.join(words)
        further = ["partwise", "train", f"from=runs/{name}", "--name", f"{name[:100]}-continued"]
        return {
            "name": name,
            "state": state,
            "step": step,
            "steps": steps,
            "settings": [["parameters", f"{parameters:,}"], *settings_of(config)],
            "last": evaluations[-1] if evaluations else None,
            "best": min(evaluations, key=lambda each: each["validation"], default=None),
            "command": command,
            "continue": command if ended is None and not imported else shlex.join(further),
            "checkpoint": max(saved, default=None),
            "report": (path / REPORT).is_file(),
            "attention": attention_of(config),
            "inspections": {key: each.about for key, each in INSPECTIONS.items()},
        }

    def page(self, name: str, file: str) -> bytes:
        """A page that a command has written into a run's folder. Raises ConfigError."""
        path = self.path(name)
        if not re.fullmatch(PAGE_NAME, file) or ".." in file or (path / file).is_symlink():
            raise ConfigError(f"{name} has no page {file[:80]}")
        try:
            return read_file(path / file)
        except OSError as error:
            raise ConfigError(f"{path / file}: {error.strerror}") from None

    def command(self, name: str, values: Mapping[str, Any]) -> str:
        """The command of a page's fields as a terminal takes it. Raises ConfigError."""
        return shlex.join(["partwise", *self.words(name, values)])

    def words(self, name: str, values: Mapping[str, Any]) -> list[str]:
        """The words of `partwise generate`, `inspect` or `report`. Raises ConfigError."""
        self.path(name)
        kind = values.get("kind")
        target = f"runs/{name}"
        if kind == "report":
            check_keys(values, set())
            words = ["report", target]
        elif kind == "inspect":
            words = ["inspect", target, *inspect_words(values)]
        elif kind == "generate":
            words = ["generate", target, *generate_words(values)]
        else:
            raise ConfigError(f"kind {str(kind)[:80]!r}: expected generate, inspect or report")
        return [*words, *(word for each in self.imports for word in ("--import", each))]

    async def events(self, words: list[str], attention: str | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """What a command writes as it runs; closing this ends its process. The last one is of the kind `end` or `failed`."""
        if self.running >= MAX_AT_ONCE:
            yield {"kind": "failed", "error": f"{MAX_AT_ONCE} commands run already: stop one, or wait for it"}
            return
        self.running += 1
        try:
            if words[0] == "generate":
                weights = [] if attention is None else ["--attention", attention]
                async with aclosing(self.processes.lines([*words, "--json", *weights], MAX_SECONDS)) as lines:
                    async for line in lines:
                        yield line
            elif words[0] == "inspect":
                shown = await self.processes.query([*words, "--json"], MAX_SECONDS)
                yield {"kind": "end", "page": Path(shown["page"]).name}
            else:
                await self.processes.printed(words, MAX_SECONDS)
                yield {"kind": "end", "page": REPORT}
        except ConfigError as error:
            yield {"kind": "failed", "error": str(error)}
        finally:
            self.running -= 1


def read_progress(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """The last step of a run, and its evaluations in order; a resumed run may have repeated some. Raises ConfigError."""
    try:
        content = read_bytes(path / METRICS, MAX_READ) if (path / METRICS).exists() else b""
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
    lines = content.split(b"\n")
    found = [line for text in lines if b'"evaluation"' in text[:30] and (line := parse_line(text))]
    by_step = {line["step"]: {key: line[key] for key in ("step", "validation", "training")} for line in found}
    last = next((line for text in reversed(lines) if (line := parse_line(text))), {"step": 0})
    return last["step"], [by_step[step] for step in sorted(by_step)]


def ending(path: Path, result: Record | None) -> str:
    """Whether a run has ended, and how."""
    if result is not None:
        return "diverged" if "diverged" in result else "finished"
    return "running" if is_alive(lock_owner(path) or 0) else "stopped"


def settings_of(config: Record) -> list[list[str]]:
    """A configuration in short: its sizes, its parts, its data and how it is trained."""
    parts = {key: value["part"] for key, value in config.items() if isinstance(value, dict) and "part" in value}
    train, data = config["train"], config.get("data")
    data = [str(value) for value in data.values() if isinstance(value, str)] if isinstance(data, dict) else []
    rows = {
        "size": ", ".join(f"{key} {config[key]}" for key in ("n_layers", "d_model", "context_length") if key in config),
        "parts": ", ".join(f"{key}={part}" for key, part in parts.items() if part != "none" and key not in NO_MODEL),
        "data": ", ".join([*data, *([f"tokenizer={parts['tokenizer']}"] if "tokenizer" in parts else [])]),
        "training": ", ".join(
            [f"{key} {train[key]}" for key in ("steps", "batch_size", "lr", "seed") if key in train]
            + [parts[key] for key in ("optimizer", "schedule") if key in parts]
        ),
    }
    return [[key, value] for key, value in rows.items() if value]


NO_MODEL = ("data", "tokenizer", "optimizer", "schedule", "averaging")


def attention_of(config: Record) -> dict[str, int] | None:
    """The numbers of layers and heads whose attention a page may ask for; None for models that write no plain text."""
    if config.get("encoder_layers") or not isinstance(config.get("n_layers"), int):
        return None
    heads = config["attention"].get("n_heads") if isinstance(config.get("attention"), dict) else None
    return {"layers": config["n_layers"], "heads": heads if isinstance(heads, int) else 1}


def inspect_words(values: Mapping[str, Any]) -> list[str]:
    check_keys(values, {"what", "text", "seq_len"})
    what = values.get("what")
    if what not in INSPECTIONS:
        raise ConfigError(f"inspection {str(what)[:80]!r}: expected {', '.join(INSPECTIONS)}")
    text = text_of(values, "text")
    length = number_of(values, "seq_len")
    return [what, *option("--text", text), *([] if length is None else ["--seq-len", str(length)])]


def generate_words(values: Mapping[str, Any]) -> list[str]:
    """The options that determine the text; those of its form are added where it is read."""
    check_keys(values, {"prompt", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "attention"})
    words = option("--prompt", text_of(values, "prompt"))
    for key in ("max_new_tokens", "temperature", "top_k", "top_p", "seed"):
        if (value := number_of(values, key)) is not None:
            words += [f"--{key.replace('_', '-')}", f"{value!r}"]
    return words


def attention_word(values: Mapping[str, Any]) -> str | None:
    """`LAYER,HEAD`, if a page asks for it. Raises ConfigError."""
    place = values.get("attention")
    if place is None:
        return None
    if not isinstance(place, dict) or set(place) != {"layer", "head"}:
        raise ConfigError("attention: expected a layer and a head")
    return f"{number_of(place, 'layer')},{number_of(place, 'head')}"


def option(name: str, text: str | None) -> list[str]:
    """An option and its text, which cannot be taken for another option."""
    if text is None:
        return []
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def check_keys(values: Mapping[str, Any], known: set[str]) -> None:
    if unknown := set(values) - known - {"kind"}:
        raise ConfigError(f"{sorted(unknown)[0][:80]!r}: not an option of this command")


def text_of(values: Mapping[str, Any], key: str) -> str | None:
    """A text that a command line can have; None without one. Raises ConfigError."""
    text = values.get(key)
    if text is None or text == "":
        return None
    if not isinstance(text, str) or len(text) > MAX_PROMPT or "\0" in text or re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"{key}: expected a text of at most {MAX_PROMPT} characters")
    return text


def number_of(values: Mapping[str, Any], key: str) -> float | None:
    """A number within its limits; None without one. Raises ConfigError."""
    kind, low, high = LIMITS[key]
    value = values.get(key)
    if value is None and key not in ("layer", "head"):
        return None
    known = (int,) if kind is int else (int, float)
    if value is None or type(value) not in known or not low <= value <= high:
        raise ConfigError(
            f"{key} {str(value)[:40]}: expected a {'whole ' if kind is int else ''}number from {low} to {high}"
        )
    return value
