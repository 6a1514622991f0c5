"""`assign`: the file of an assignment and the sheet beside it."""

from pathlib import Path
from typing import Any

from partwise.ablation.request import Request
from partwise.ablation.run_plan import plan_runs
from partwise.classroom.assignment import Assignment, fixed_part
from partwise.classroom.sheet import sheet
from partwise.cli.terminal import console
from partwise.comparison.ledger.project import code_version
from partwise.config import REGISTRY, ConfigError
from partwise.config.suggestions import did_you_mean
from partwise.drafts import write_output
from partwise.train.config import RunConfig, run_config

NOT_ASSIGNED = ("data", "tokenizer")
"""Families that all arms of a comparison share."""


def write_assignment(file: Path, request: dict[str, Any], families: str, students: int, first_seed: int) -> None:
    """Write FILE and its sheet, and say what comes next. Raises ConfigError; an existing file is not replaced."""
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{file}: give a file that ends in .yaml, such as course.yaml")
    chosen = parse_families(families)
    config = run_config(request["preset"], data=request["data"], common=request["common"])
    assignment = make_assignment(request, config, chosen, students, first_seed)
    text = sheet(assignment, file.name, example(config, chosen[0]), *described(request, config))
    files = {file: assignment.to_yaml(file.name), file.with_suffix(".md"): text}
    for path in files:
        if path.exists():
            raise ConfigError(
                f"{path} exists: an assignment that was handed out stays; give another name, or delete it"
            )
    for path, content in files.items():
        write_output(path, content)
    console.print(f"wrote {file}, the assignment, and {file.with_suffix('.md')}, the sheet for students", markup=False)
    console.print(
        f"next: run the baseline yourself, partwise compare {file} {example(config, chosen[0])} --student 0 --name teacher",
        markup=False,
        soft_wrap=True,
    )


def parse_families(text: str) -> tuple[str, ...]:
    """`norm,ffn`. Raises ConfigError for a family that does not exist, or that arms share."""
    families = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for family in families:
        if family not in REGISTRY or family in NOT_ASSIGNED:
            known = [each for each in REGISTRY if each not in NOT_ASSIGNED]
            raise ConfigError(f"--families {text}: {family!r} is not a family of parts{did_you_mean(family, known)}")
    if not families:
        raise ConfigError("--families is empty: give families of parts, such as norm,ffn")
    return families


def make_assignment(
    request: dict[str, Any], config: RunConfig, families: tuple[str, ...], students: int, first_seed: int
) -> Assignment:
    """The assignment; the plan that all students have in common is that of a comparison with any change."""
    plan = plan_runs(Request.from_dict({**request, "change": [f"train.lr={2 * config.train.lr}"]}))
    code = code_version()
    return Assignment(
        **{**request, "common": tuple(request["common"])},
        families=families,
        students=students,
        first_seed=first_seed,
        version=code["version"],
        sources=code["sources"],
        data_hash=config.prepare().hash,
        plan=fixed_part(plan.identity()),
    )


def example(config: RunConfig, family: str) -> str:
    """A change of a family: its first part that is not the baseline's."""
    there = config.to_dict()[family]
    name = there.get("part") if isinstance(there, dict) else None
    return f"{family}={next(each for each in REGISTRY[family] if each not in (name, 'none'))}"


def described(request: dict[str, Any], config: RunConfig) -> tuple[str, str]:
    """The unit of the margin, and the training of one run."""
    train = config.train
    unit = plan_runs(Request.from_dict({**request, "change": [f"train.lr={2 * train.lr}"]})).rules.unit
    return unit, f"{train.steps} steps of {train.batch_size} x {config.seq_len} tokens on {config.data.name}"
