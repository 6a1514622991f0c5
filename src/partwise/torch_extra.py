"""The extra `torch`: what models need. Verdicts, plans, and comparisons of commands and functions do without it."""

from importlib.util import find_spec

from partwise.config import ConfigError

PACKAGES = ("torch", "tokenizers", "safetensors")
"""What pyproject.toml lists as this extra."""

FOR_CPUS = "; without a GPU, first `pip install torch --index-url https://download.pytorch.org/whl/cpu`"


class MissingTorchError(ConfigError, ImportError):
    """A package of the extra is not installed; the message says how to install it."""

    def __init__(self, what: str, package: str = "torch") -> None:
        for_cpus = FOR_CPUS if package == "torch" else ""
        super().__init__(f"{what} needs {package}: `pip install 'partwise[torch]'`{for_cpus}")


def explained(error: Exception, what: str) -> Exception:
    """The error, or if a package of the extra is missing, a MissingTorchError. `what` needs it, and begins the sentence."""
    if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
        return MissingTorchError(what, error.name)
    return error


def has_torch() -> bool:
    """Whether torch is installed, without importing it."""
    return find_spec("torch") is not None


def require_torch(what: str) -> None:
    """Raise MissingTorchError if torch is not installed, without importing it."""
    if not has_torch():
        raise MissingTorchError(what)
