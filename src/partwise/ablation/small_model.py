"""The model of `partwise demo`, which trains in seconds."""

SMALL_MODEL = (
    *("d_model=64", "n_layers=2", "attention.n_heads=4", "context_length=64"),
    *("train.lr=2e-3", "train.steps=600", "train.eval_every=100"),
)
"""Overrides of a decoder preset."""
