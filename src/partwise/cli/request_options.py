"""Command-line options that follow from the fields of a `Request`, and groups of options that are one dataclass.

This module imports pydantic. Commands import it when one with such options runs or shows its help.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from annotated_types import Ge, Gt
from pydantic.fields import FieldInfo

from partwise.ablation.request import Request, flag_of, is_list_of, option_of
from partwise.cli.options import FLAG

OPTIONS = "options"
"""The parameter of a command that receives the values, by field name; None for an option that was not given."""


METAVARS: dict[Any, str] = {bool: FLAG, int: "N", float: "X"}


def derive_command(
    command: Callable[..., None],
    keys: Sequence[str] = (),
    model: type[Request] = Request,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """The click command of a function; its help is the docstring, `settings` are those of click's context."""
    app = typer.Typer(add_completion=False)
    app.command(help=inspect.getdoc(command), context_settings=dict(settings or {}))(
        with_request_options(command, keys, model)
    )
    return typer.main.get_command(app)


def with_request_options(
    command: Callable[..., None], keys: Sequence[str], model: type[Request]
) -> Callable[..., None]:
    """The command with one option per field of `model`, or of `keys` alone, in place of `options`, and with one option per
    field of each parameter whose type is a dataclass.
    """
    fields = {key: model.model_fields[key] for key in keys or model.model_fields}
    fields = {key: field for key, field in fields.items() if not option_of(field).positional}
    own = inspect.signature(command).parameters
    groups = {name: parameter.annotation for name, parameter in own.items() if is_group(parameter.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name == OPTIONS:
            parameters += [request_parameter(key, field) for key, field in fields.items()]
        elif name in groups:
            parameters += group_parameters(groups[name])
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = {key: values.pop(key) for key in fields}
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
        command(**values, **{OPTIONS: options})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def group_parameters(group: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a command for the fields of a dataclass."""
    for field in dataclasses.fields(group):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )


def request_parameter(key: str, field: FieldInfo) -> inspect.Parameter:
    """The parameter of a command for one field, as typer reads it."""
    option = option_of(field)
    kind, default = option_type(field), field.get_default(call_default_factory=True)
    names = [flag_of(key, field), *filter(None, [option.short])]
    minimum = minimum_of(field) if kind is int else None
    if option.unset or isinstance(default, list) or default is None:
        kind, default = kind | None, None
    metavar = option.metavar or METAVARS.get(option_type(field), "TEXT")
    declared = typer.Option(*names, help=field.description, min=minimum, rich_help_panel=option.panel, metavar=metavar)
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])


def option_type(field: FieldInfo) -> Any:
    """The type on the command line: a choice and a list of numbers are text, which `Request` validates."""
    if is_list_of(field, str):
        return list[str]
    return next((kind for kind in (bool, int, float) if field.annotation in (kind, kind | None)), str)


def minimum_of(field: FieldInfo) -> int | None:
    bounds = [each.ge if isinstance(each, Ge) else each.gt + 1 for each in field.metadata if isinstance(each, Ge | Gt)]  # type: ignore[operator]
    return int(bounds[0]) if bounds else None  # type: ignore[call-overload]
