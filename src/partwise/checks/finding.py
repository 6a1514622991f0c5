"""The result of one check."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Outcome = Literal["passed", "warning", "leak"]


@dataclass(frozen=True)
class Finding:
    """The finding of a check. A `leak` is a prediction that depends on its own target."""

    check: str
    outcome: Outcome
    measured: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Finding":
        """The inverse of `to_dict`. Raises ValueError."""
        found = cls(**{name: values[name] for name in cls.__dataclass_fields__})
        if found.outcome not in get_args(Outcome) or not all(isinstance(each, str) for each in vars(found).values()):
            raise ValueError(f"not a finding: {values}")
        return found
