"""Reading `run.json`, everything needed to reproduce a run."""

from pathlib import Path
from typing import Any, NoReturn

from partwise.checkpoint import FORMAT, find_run, load
from partwise.compute.backend_plan import BackendPlan
from partwise.compute.runtime import Runtime, choose_runtime
from partwise.config import ConfigError
from partwise.config.yaml import show
from partwise.formats.huggingface.families import FAMILIES
from partwise.formats.huggingface.reading import is_hf_folder, load_hf
from partwise.model import Transformer
from partwise.records import DamagedFileError, read_record
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig, TrainConfig
from partwise.train.imported import open_hf_folder

MAX_THREADS = 4096
"""More than any machine on which a run may have started."""


def read_metadata(folder: Path) -> dict[str, Any]:
    """The run's `run.json`. Raises ConfigError if it cannot be read."""
    try:
        metadata = read_record(folder / "run.json")
    except DamagedFileError as error:
        raise ConfigError(f"{error}: start over with --fresh") from None
    if isinstance(metadata.get("format"), int) and metadata["format"] > FORMAT:
        raise ConfigError(f"{folder} was written by a newer version of partwise: read it with that version")
    if metadata.get("format") != FORMAT:
        raise ConfigError(
            f"{folder} has format {metadata.get('format')}, but this version reads format {FORMAT}: "
            "start over with --fresh"
        )
    for key in ("config", "runtime", "machine", "data"):
        if not isinstance(metadata.get(key), dict):
            raise ConfigError(f"{folder / 'run.json'} lacks {key!r}: start over with --fresh")
    command = metadata.get("command") or []
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ConfigError(
            f"{folder / 'run.json'} is damaged: its command is not a list of words: start over with --fresh"
        )
    if "hash" not in metadata["data"]:
        raise ConfigError(f"{folder / 'run.json'} lacks the hash of its data: start over with --fresh")
    return metadata


def read_runtime(folder: Path, metadata: dict[str, Any]) -> Runtime:
    """The runtime settings a run was started with, whether or not this machine supports them. Raises ConfigError."""
    try:
        runtime = Runtime(**metadata["runtime"])
    except TypeError:
        raise ConfigError(
            f"{folder / 'run.json'} has runtime settings of another version: start over with --fresh"
        ) from None
    expected = Runtime().to_dict()
    for key, value in vars(runtime).items():
        if type(value) is not type(expected[key]):
            _refuse_setting(folder, key, value)
    if not 1 <= runtime.threads <= MAX_THREADS:
        _refuse_setting(folder, "threads", runtime.threads)
    try:
        TrainConfig.from_dict({"precision": runtime.precision})
    except ConfigError:
        _refuse_setting(folder, "precision", runtime.precision)
    return runtime


def stored_runtime(folder: Path, metadata: dict[str, Any]) -> Runtime:
    """The runtime settings a run was started with. Raises ConfigError if this machine does not support them."""
    runtime = read_runtime(folder, metadata)
    try:
        choose_runtime(TrainConfig.from_dict({"device": runtime.device}))
    except ConfigError:
        raise ConfigError(
            f"{folder} was trained on {runtime.device}, which is not available here: resume it on the machine where it "
            "was started, or start over with --fresh"
        ) from None
    return runtime


def _refuse_setting(folder: Path, key: str, value: Any) -> NoReturn:
    raise ConfigError(f"{folder / 'run.json'} is damaged: its runtime has {key}={show(value)}: start over with --fresh")


def read_plan(folder: Path, metadata: dict[str, Any]) -> BackendPlan:
    """The backends that a run was started with. Raises ConfigError."""
    try:
        return BackendPlan.from_dict(metadata["plan"])
    except (KeyError, TypeError):
        raise ConfigError(f"{folder / 'run.json'} lists no backends: start over with --fresh") from None


def check_stored_plan(folder: Path, metadata: dict[str, Any], plan: BackendPlan) -> None:
    """Raise ConfigError if the run was started with another plan: other backends would silently change the numbers."""
    different = read_plan(folder, metadata).difference(plan)
    if different:
        name, old, new = different
        raise ConfigError(
            f"{folder} was started with other backends ({name} was computed by {old}, here by {new}): resume it with "
            "the version and on the machine where it was started, or start over with --fresh"
        )


def open_run(name: str | Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """The folder, configuration and metadata of an existing run, or of a folder as `transformers` writes it.

    Raises ConfigError.
    """
    if is_hf_folder(name):
        return open_hf_folder(Path(name))
    folder = find_run(name)
    metadata = read_metadata(folder)
    return folder, RunConfig.from_stored(metadata["config"]), metadata


def load_run(folder: Path, config: RunConfig, metadata: dict[str, Any]) -> tuple[Transformer, Tokenizer]:
    """The model and the tokenizer of what `open_run` has returned. Raises ConfigError."""
    if is_hf_folder(folder):  # its configuration is read already
        return load_hf(folder, (FAMILIES[metadata["imported"]["family"]], config.model))
    return load(folder)
