"""The checks of parts that are not of this package: before a run trains, and on its trained weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partwise.checks.finding import Finding
from partwise.checks.model_checks import LEAK, check_model
from partwise.checks.setting_checks import check_data, check_optimizer, check_schedule
from partwise.compute.backend_plan import BackendPlan
from partwise.compute.backends import BACKENDS
from partwise.config import ConfigError, own_error, own_names, own_parts
from partwise.data import Dataset
from partwise.machine import is_out_of_memory
from partwise.model import Transformer
from partwise.parts import MODEL_FAMILIES
from partwise.train.config import RunConfig

ALLOW = "--allow-leak"
TRAINED = "findings_trained"
"""The key in `run.json` of what is found on the trained weights."""


def check_own_parts(
    config: RunConfig, model: Transformer, dataset: Dataset, plan: BackendPlan, trained: bool = False
) -> list[Finding]:
    """The findings of the checks of custom parts; none without such parts.

    `trained` says that the model has been trained: it is then checked at these weights. Raises ConfigError if the model
    cannot be computed.
    """
    found: list[Finding] = []
    if any(each.family in MODEL_FAMILIES for each in own_parts(config)) or own_backends(plan):
        found += check_own_model(config, model, plan, trained)
    return found if trained else found + check_own_settings(config, model, dataset)


def check_own_settings(config: RunConfig, model: Transformer, dataset: Dataset) -> list[Finding]:
    """The checks of a schedule, an optimizer and data that are not of this package."""
    found, lr = list[Finding](), config.train.lr
    families = {each.family for each in own_parts(config)}
    try:
        if "schedule" in families:
            found.append(check_schedule(config.schedule.factor, config.train.steps))
        if "optimizer" in families:
            found += check_optimizer(model, lambda each: config.optimizer.build(each, lr), lr)
        if "data" in families:
            found += check_data(dataset, config.data, config.model.vocab_size)
    except (TypeError, AttributeError, NotImplementedError) as error:
        raise own_error(config, error) from error
    return found


def has_own(config: RunConfig) -> bool:
    """Whether a run has parts that are not of this package, or could have such backends."""
    return bool(own_parts(config)) or not all(is_ours(each) for kind in BACKENDS.values() for each in kind.values())


def is_ours(value: object) -> bool:
    return type(value).__module__.startswith("partwise.")


def check_own_model(config: RunConfig, model: Transformer, plan: BackendPlan, trained: bool) -> list[Finding]:
    """The checks of a model. Raises ConfigError if it cannot be computed."""
    try:
        return check_model(model, config.seq_len, trained, plan.apply if own_backends(plan) else None)
    except ConfigError:
        raise
    except Exception as error:
        if is_out_of_memory(type(error).__name__, str(error)):
            return [Finding(LEAK, "warning", "not checked: too little memory for a copy of the model")]
        raise own_error(config, error) from error


def own_backends(plan: BackendPlan) -> list[str]:
    """The settings of a plan's backends that are not of this package: `train.attention_backend=mine`."""
    chosen = dict.fromkeys((each.kind, name) for each in plan.choices.values() for name in each.chain)
    return [f"train.{kind}_backend={name}" for kind, name in chosen if not is_ours(BACKENDS[kind][name])]


def names_of(config: RunConfig, plan: BackendPlan) -> str:
    """The parts and backends that are not of this package."""
    return ", ".join(filter(None, [own_names(config), *own_backends(plan)]))


def stored_findings(folder: Path, metadata: Mapping[str, Any]) -> list[Finding]:
    """The findings in `run.json`. Raises ConfigError if they are damaged."""
    try:
        return [Finding.from_dict(each) for key in ("findings", TRAINED) for each in metadata.get(key, ())]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{folder / 'run.json'} has damaged findings: start over with --fresh") from None


def leaks(findings: Sequence[Finding]) -> list[str]:
    return [finding.measured for finding in findings if finding.outcome == "leak"]


def leak_sentence(findings: Sequence[Finding]) -> str:
    """The first sentence of a report on a model that sees later positions; '' for any other."""
    found = leaks(findings)
    return f"This model sees the tokens that it predicts, so its loss means nothing: {found[0]}." if found else ""


def refuse_leaks(config: RunConfig, findings: Sequence[Finding], plan: BackendPlan) -> None:
    """Raise ConfigError if a position sees its own target."""
    for measured in leaks(findings):
        raise ConfigError(
            f"{names_of(config, plan)} sees the tokens that it predicts: {measured}. Let each position read "
            f"only itself and earlier ones; {ALLOW} trains it anyway, and the report says so"
        )
