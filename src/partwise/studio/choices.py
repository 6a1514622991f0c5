"""What a question may consist of: presets, parts and data, from the registry, and what a change means for the arms."""

from typing import Any

from partwise.ablation.run_plan import RunArm, plan_runs
from partwise.concepts.answer import answer
from partwise.concepts.lookup import find
from partwise.concepts.settings import first_sentence, option_defaults
from partwise.config import REGISTRY, ConfigError
from partwise.model.options import ModelOptions
from partwise.presets.lookup import PRESETS
from partwise.studio.questions import OWN_DATA, SIZES, Allowed, Question


def list_choices(allowed: Allowed) -> dict[str, Any]:
    """Everything that the sentence of a question lets one choose."""
    families = [name for name in ModelOptions.model_fields if name in REGISTRY]
    families += [name for name in ("optimizer", "schedule") if name in REGISTRY]
    return {
        "presets": [{"name": name, "about": each.description} for name, each in PRESETS.items()],
        "families": [
            {
                "name": family,
                "parts": [
                    {"name": f"{family}={part}", "about": first_sentence(recipe), "options": option_defaults(recipe)}
                    for part, recipe in sorted(REGISTRY[family].items())
                ],
            }
            for family in families
        ],
        "data": [*OWN_DATA, *allowed.data],
        "sizes": list(SIZES),
        "experiments": list(allowed.experiments),
    }


def describe_question(question: Question) -> dict[str, Any]:
    """The arms of a question, what its change is, and its command. Raises ConfigError with the reason it cannot be built."""
    plan = plan_runs(question.request)
    return {
        "question": plan.question,
        "notes": list(plan.mixed_changes),
        "arms": [describe_arm(arm) for arm in plan.arms],
        "unit": plan.rules.unit,
        "metric": plan.rules.metric,
        "margin": plan.rules.margin,
        "lower_is_better": plan.rules.lower_is_better,
        "seeds": plan.seeds,
        "name": question.name,
        "command": question.request.command(question.name, question.allowed.imports),
        "part": describe_change(question.request.change[0]),
    }


def describe_arm(arm: RunArm) -> dict[str, Any]:
    config = arm.config
    return {
        "name": arm.name,
        "parameters": config.model.parameters(),
        "flops_per_token": config.flops_per_token(),
        "steps": config.train.steps,
    }


def describe_change(word: str) -> dict[str, Any]:
    """What `partwise parts WORD` says of a part or a setting."""
    try:
        found = find(word if word.partition("=")[0] in REGISTRY else word.partition("=")[0])
        said = answer(found[0], results=False)
    except (ConfigError, IndexError):
        return {"title": word, "why": "", "rows": {}}
    return {"title": said.title, "why": said.why, "rows": said.rows}
