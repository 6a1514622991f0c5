"""Importing parts of the user's own, named by `--import`."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

from partwise.config.yaml import ConfigError, show


def import_parts(source: str) -> None:
    """Import custom parts from a module or a `.py` file given by `--import`. Raises ConfigError."""
    path = Path(source)
    try:
        if path.suffix == ".py":
            _run_file(path)
        else:
            if "" not in sys.path:
                sys.path.append("")  # last, so that files of the working folder hide no installed module
            importlib.import_module(source)
    except ConfigError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"--import {show(source)}: {show(reason)}; give a module name or the path of a .py file"
        ) from error


def _run_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"--import {show(str(path))}: no such file")
    # the name includes a hash of the path, so that a file `types.py` does not shadow the module of that name
    name = f"partwise_import_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic resolves annotations there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
