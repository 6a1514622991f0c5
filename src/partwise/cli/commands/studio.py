"""`studio`: serve the page for the current folder."""

from importlib.util import find_spec
from pathlib import Path

from partwise.config import ConfigError

PACKAGES = ("starlette", "uvicorn")
"""What pyproject.toml lists as the extra `studio`."""


def serve(
    port: int | None,
    experiments: tuple[str, ...],
    data: tuple[str, ...],
    imports: tuple[str, ...],
    hosts: tuple[str, ...],
    prefix: str,
    opens: bool,
) -> None:
    """Serve until Ctrl-C. Raises ConfigError."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"`partwise studio` needs {missing[0]}: `pip install 'partwise[studio]'`")
    for name in data:
        if not Path(name).exists():
            raise ConfigError(f"--data {name}: no such file or folder")
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"--prefix {prefix}: expected a path such as /partwise")
    from partwise.studio.experiments import check_experiment
    from partwise.studio.questions import Allowed
    from partwise.studio.server import run_studio

    for file in experiments:
        check_experiment(file)
    run_studio(port, Allowed(imports, data, experiments), hosts, prefix, opens)
