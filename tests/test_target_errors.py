"""The rates that contest_rules.json states, against the simulation; test_generated.py has those of the page."""

import re

import pytest

import target_errors
from partwise.comparison.targets.contests import rules

RATES = {
    "modded-nanogpt": lambda: [target_errors.until_significant(3, 10), 0.01, 0.01, target_errors.holm_rates()[0]],
    "modded-nanogpt-track-3": lambda: [
        target_errors.known_sd_rate(ratio, rules()["modded-nanogpt-track-3"].alpha) for ratio in (1.5, 1, 2)
    ],
    "parameter-golf": lambda: [
        target_errors.against_a_measured_record(3, 0.01),
        0.01,
        target_errors.best_of(7, 5, 0.01),
    ],
    "parameter-golf-end": lambda: [
        target_errors.any_of(10, 0.25),
        target_errors.false_records(10, 3, 0.25)[0],
        target_errors.best_of(7, 5, 0.25),
    ],
}
"""The rates of a rule's sentences, in their order."""


@pytest.mark.parametrize("name", sorted(rules()))
def test_what_a_rule_gets_wrong_is_simulated(name: str) -> None:
    stated = [float(text) / 100 for text in re.findall(r"([\d.]+)%", " ".join(rules()[name].errs))]
    assert stated == pytest.approx(RATES[name](), abs=0.0006)
