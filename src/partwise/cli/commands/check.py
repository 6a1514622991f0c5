"""`check`: what the checks of a model and of the user's own settings find."""

from partwise.cli.terminal import console, table
from partwise.config import own_names
from partwise.train.config import run_config
from partwise.train.loop import Run
from partwise.train.own_parts import check_own_model, check_own_settings, leaks


def check_preset(preset: str, overrides: list[str], data: str | None) -> int:
    """Print a row per check; returns 1 if a position sees later tokens, else 0. Raises ConfigError."""
    config = run_config(preset, *overrides, data=data)
    run = Run(config)
    findings = check_own_model(config, run.model, run.plan, trained=False)
    findings += check_own_settings(config, run.model, run.dataset)
    console.print(
        f"checks of {own_names(config) or 'the parts of this package'} in {' '.join([preset, *overrides])}, which trains on "
        f"{config.data.name} in windows of {config.seq_len:,} tokens",
        markup=False,
        soft_wrap=True,
    )
    rows = [(each.check, each.outcome, each.measured) for each in findings]
    console.print(table("", ["check", "result", "measured"], rows))
    if leaks(findings):
        console.print("train and compare refuse this model: --allow-leak trains it anyway", markup=False)
    return 1 if leaks(findings) else 0
