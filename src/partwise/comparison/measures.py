"""The quantities that can be matched between arms."""

from typing import Literal

Measure = Literal["tokens", "parameters", "flops", "seconds"]
