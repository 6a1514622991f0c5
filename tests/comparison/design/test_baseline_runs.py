"""Further runs of the baseline are refused where a claim is against another arm."""

from typing import Any

import pytest

from partwise.ablation.run_comparison import plan_comparison
from partwise.config import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ["norm=rmsnorm"], "cumulative": True}, "rather than with the baseline"),
        ({"interaction": ["ffn=geglu", "norm=rmsnorm"]}, "rather than with the baseline"),
        ({"tune": "train.lr=1e-3,2e-3"}, "cannot be combined with tune"),
    ],
)
def test_further_runs_of_the_baseline_need_claims_against_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_comparison("mingpt", "ffn=swiglu", seeds=8, design="unpaired", baseline_runs=2, **options)
