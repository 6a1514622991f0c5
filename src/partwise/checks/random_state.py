"""Restore the random number generators on exit."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed Python, numpy and torch on every device in use, and restore all of them afterwards."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    metal = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=devices):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed_all(seed)
            if metal is not None:
                torch.mps.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if metal is not None:
            torch.mps.set_rng_state(metal)
