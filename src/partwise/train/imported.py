"""Models of other programs as runs: a folder as `transformers` writes it, with the settings of a run to evaluate it."""

import time
from pathlib import Path
from typing import Any

from partwise.checkpoint import FORMAT, tensor_writer, write_folder
from partwise.compute.runtime import choose_runtime, machine_info
from partwise.config import ConfigError
from partwise.drafts import new_folder
from partwise.formats.huggingface.reading import load_hf, read_hf_config, stored_dtype
from partwise.json_files import json_writer, write_json
from partwise.model import ModelConfig
from partwise.run_names import explain_write_errors
from partwise.train.config import RunConfig, default_settings
from partwise.train.source import SEQ_LEN, hash_weights


def imported_config(model: ModelConfig, tokenizer_folder: Path) -> RunConfig:
    """The configuration of a run with this model and tokenizer on TinyShakespeare, the default data."""
    settings = default_settings() | model.to_dict()
    settings["train"] |= {"seq_len": min(model.context_length, SEQ_LEN)}
    return RunConfig.from_dict({**settings, "tokenizer": {"part": "bpe", "path": str(tokenizer_folder)}})


def open_hf_folder(folder: Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """The folder, configuration and metadata of a run, as `open_run` returns them. Raises ConfigError."""
    family, model = read_hf_config(folder)
    config = imported_config(model, folder)
    return folder, config, imported_metadata(config, {"family": family.model_type})


def imported_metadata(config: RunConfig, source: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "config": config.to_stored(),
        "runtime": choose_runtime(config.train).to_dict(),
        "machine": machine_info(),
        "data": {"hash": None},  # unknown: it was trained elsewhere
        "parameters": config.model.parameters(),
        "imported": source,
        "command": [],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def import_hf_folder(source: Path, target: Path) -> RunConfig:
    """Write the model of a folder as a run whose only checkpoint is that of step 0. Raises ConfigError."""
    if target.exists():
        raise ConfigError(f"{target} exists: choose another --name")
    family, model_config = read_hf_config(source)
    model, tokenizer = load_hf(source, (family, model_config))
    config = imported_config(model_config, target / "tokenizer")
    details = {
        "family": family.model_type,
        "from": str(source),
        "sha256": hash_weights(source),
        "dtype": str(stored_dtype(source)).removeprefix("torch."),
    }
    with explain_write_errors(target), new_folder(target) as draft:
        (draft / "tokenizer").mkdir()
        tokenizer.save(draft / "tokenizer" / "tokenizer.json")
        write_folder(
            draft / "checkpoints" / "step-00000000",
            {
                "config.json": json_writer({"format": FORMAT, "model": model_config.to_stored()}),
                "model.safetensors": tensor_writer(model.state_dict()),
                "tokenizer.json": tokenizer.save,
            },
        )
        write_json(draft / "run.json", imported_metadata(config, details))
    return config
