"""Times of plans in turn, and what `doctor --time` says of torch.compile."""

from typing import Any

import pytest
import torch

import partwise
from command_line import run
from partwise.compute.backend_plan import plan_config
from partwise.compute.runtime import DefaultSettings, choose_runtime
from partwise.compute.timing import ROUNDS, WARMUP_ROUNDS, StepTimes, training_times
from partwise.config import ConfigError

TINY = ("n_layers=1", "d_model=16", "attention.n_heads=2", "context_length=8", "residual.dropout=0.1")


def test_a_step_is_the_median_of_later_rounds_and_preparation_what_the_first_took_beyond_it() -> None:
    times = StepTimes(100, [5.0, 1.0, 0.5, 0.25, 0.5, 0.75, 0.5])
    assert (times.step, times.rate, times.preparation) == (0.5, 200.0, 4.5)


def test_a_plan_is_compiled_once_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr("partwise.compute.compilation.COMPILER", count)
    config, runtime = partwise.preset("mingpt", *TINY), choose_runtime(DefaultSettings(compile=True))
    plan = plan_config(config, runtime)
    times = training_times(config, {"plan": plan, "compiled": plan}, runtime, 2, {"compiled"})
    assert len(graphs) == 1
    assert [len(each.seconds) for each in times.values()] == [ROUNDS + WARMUP_ROUNDS] * 2
    assert times["compiled"].preparation > times["compiled"].step


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        (0.5, "after 20 s of compilation: train.compile=true saves time in runs of more than 40 steps"),
        (0.99, "after 20 s of compilation: not faster"),
        (ConfigError("no compiler"), "not measured: no compiler"),
    ],
)
def test_doctor_offers_torch_compile_only_where_it_is_faster(
    compiled: float | ConfigError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(config: Any, plans: dict[str, Any], *others: Any) -> dict[str, StepTimes]:
        steps = {"plan": 1.0, "eager": 2.0, "compiled": compiled}
        if "compiled" in plans and isinstance(compiled, ConfigError):
            raise compiled
        return {name: StepTimes(100, [20.0 + steps[name], *[steps[name]] * 8]) for name in plans}

    monkeypatch.setattr("partwise.cli.commands.doctor.training_times", measured)
    assert run(monkeypatch, "doctor", "mingpt", *TINY, "--time") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(2.00 times as fast)" in text
    assert said in text
