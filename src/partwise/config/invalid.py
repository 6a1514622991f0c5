"""Validation errors of pydantic as the user's path and the expected value."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

SHOULD_BE = "Input should be "
OPTIONS, LIST = "options, as {NAME: VALUE}", "a list, as [VALUE, VALUE]"
KINDS = {
    "model_type": OPTIONS,
    "model_attributes_type": OPTIONS,
    "dict_type": OPTIONS,
    "list_type": LIST,
    "tuple_type": LIST,
}
"""Words for the expected value, by the Python type that pydantic names."""

Path = tuple[int | str, ...]


def first_errors(error: ValidationError, values: Any) -> tuple[Path, list[ErrorDetails]]:
    """The path of the first invalid value, and its errors: of a union, one for each alternative."""
    found = [(user_path(each, values), each) for each in error.errors(include_url=False)]
    first = found[0][0]
    below = [(path, each) for path, each in found if path[: len(first)] == first]
    deepest = max((path for path, _ in below), key=len)  # in the alternative that was meant: an item of a list, say
    return deepest, [each for path, each in below if path == deepest]


def user_path(error: ErrorDetails, values: Any) -> Path:
    """Where in the user's values an error lies, without the names of a union's alternatives."""
    path: list[int | str] = []
    for key in error["loc"]:
        listed = isinstance(values, list | tuple) and isinstance(key, int) and key < len(values)
        if listed or (isinstance(values, Mapping) and key in values):
            values = values[key]
            path.append(key)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path) or error["loc"][:1]


def message_of(errors: Sequence[ErrorDetails]) -> str:
    """What the value should be by any alternative; a message of the project itself is unchanged."""
    messages = [SHOULD_BE + KINDS[each["type"]] if each["type"] in KINDS else each["msg"] for each in errors]
    expected = dict.fromkeys(text.removeprefix(SHOULD_BE) for text in messages if text.startswith(SHOULD_BE))
    text = SHOULD_BE + " or ".join(expected) if expected else messages[0]
    text = " ".join(text.removeprefix("Value error, ").split())
    return f"{text[:1].lower()}{text[1:]}"
