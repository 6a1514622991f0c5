"""ModelConfig, Transformer and their components."""

from partwise.model.transformer import ModelConfig, Transformer, meta_model

__all__ = ["ModelConfig", "Transformer", "meta_model"]
