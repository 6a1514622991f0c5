"""ModelConfig, Transformer and their components."""

from partwise.model.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
