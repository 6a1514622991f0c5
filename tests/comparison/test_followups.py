"""Replication on fresh seeds, and grids of settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comparisons import SETTINGS, TINY
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.cli import app
from partwise.comparison.followups import REPLICATION_SEED_OFFSET, make_replication, winner
from partwise.config import ConfigError


def test_a_winner_is_replicated_on_fresh_seeds(here: Path) -> None:
    request = Request.from_dict(
        {"preset": "mingpt", **SETTINGS, "arms": ["train.lr=3e-2", "train.lr=1e-6"], "seeds": 4, "margin": 1e-6}
    )
    comparison = make_comparison(request, "c")
    results = comparison.run()
    row = winner(results)
    assert row is not None and row.arm == "train.lr=3e-2"
    made = make_replication(comparison)
    assert made is not None
    again, reason = made
    assert again.plan.seeds >= 4 and reason.startswith(f"{again.plan.seeds} seeds")
    assert again.plan.first_seed == REPLICATION_SEED_OFFSET and len(again.plan.arms) == 2
    assert not set(range(REPLICATION_SEED_OFFSET, REPLICATION_SEED_OFFSET + 4)) & set(results.seeds)
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arms[0].config,
        comparison.plan.arm(row.arm).config,
    ]


def test_a_winner_at_its_default_is_replicated_at_its_default(here: Path) -> None:
    """Both arms are repeated unchanged, even if the baseline's best learning rate differs from the arm's."""
    common = [*TINY, "train.lr=1e-2"]
    options = {**SETTINGS, "common": common, "arms": ["d_model=32"], "seeds": 3, "tune": "train.lr=1e-2,1e-3"}
    comparison = make_comparison(Request.from_dict({"preset": "mingpt", **options}), "w")
    comparison.run()
    claim = next(claim for claim in comparison.results.claims if claim.effect.arm.startswith("d_model"))
    better = replace(claim.effect, verdict="better", against="mingpt")
    won = claim.model_copy(update={"effect": better})
    comparison.judged = comparison.results.model_copy(update={"claims": (won,)})
    made = make_replication(comparison)
    assert made is not None
    again, _ = made
    assert [arm.config for arm in again.plan.arms] == [
        comparison.plan.arm(name).config for name in ("mingpt", better.arm)
    ]


def test_a_grid_has_one_verdict_per_cell(here: Path) -> None:
    common = [word for each in TINY for word in ("--common", each)]
    words = ["compare", "mingpt", "ffn=swiglu", *common, "--data", "text.txt", "--seeds", "2", "--name", "g"]
    done = CliRunner().invoke(app, [*words, "--grid", "train.steps=4,8", "--grid", "n_layers=1"])
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("runs/g/grid.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == ["train.steps=4 n_layers=1", "train.steps=8 n_layers=1"]
    assert "do not extend to other settings" in done.output and "<svg" in Path("runs/g/grid.html").read_text()
    for text in ("n_layers", "n_layers=2,2"):
        refused = CliRunner().invoke(app, [*words, "--grid", text])
        assert isinstance(refused.exception, ConfigError)


def test_the_cells_of_a_grid_run_where_the_command_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from partwise.cli.commands import compare_preset

    found: list[str] = []
    monkeypatch.setattr(
        compare_preset, "compare_over_grid", lambda cells, *_: found.extend(cell.on for _, cell in cells)
    )
    words = [
        "compare",
        "mingpt",
        "ffn=swiglu",
        *(word for each in TINY for word in ("--common", each)),
        "--grid",
        "train.lr=1e-3,2e-3",
        "--on",
        "workers",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and found == ["workers"] * 2, done.output
