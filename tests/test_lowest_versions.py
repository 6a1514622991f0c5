"""The pins of `make test-lowest` are the bounds of pyproject.toml."""

from pathlib import Path

from lowest_versions import lowest_versions

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_pins_are_the_lower_bounds() -> None:
    pins = lowest_versions(PYPROJECT.read_text(), [])
    assert {"numpy", "scipy", "pandas", "narwhals"} <= {pin.split("==")[0] for pin in pins}
    assert not any(pin.startswith("torch") for pin in pins)
    pins += lowest_versions(PYPROJECT.read_text(), ["hf"])
    assert pins[-1].startswith("transformers==")
    assert all(pin.replace("==", ">=") in PYPROJECT.read_text() for pin in pins)
