"""The configuration of a wrapped model."""

from typing import Any

from transformers import PretrainedConfig

from partwise.config import ConfigError
from partwise.model import ModelConfig

MODEL_TYPE = "partwise"


class PartwiseConfig(PretrainedConfig):
    """The plain values of a ModelConfig, and the shapes of the tensors of layers fitted to the training text."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        model: dict[str, Any] | None = None,
        fitted: dict[str, list[int]] | None = None,
        decoder_start_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        config = model_config(model or {})
        self.model, self.fitted = config.to_stored(), fitted or {}
        tied = config.tie_embeddings or (config.encoder_layers > 0 and config.share_encoder_embeddings)
        names = {  # by which other programs ask for sizes
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_hidden_layers": config.n_layers,
            "max_position_embeddings": config.context_length,
            "is_encoder_decoder": config.encoder_layers > 0,
            "tie_word_embeddings": tied,
        }
        super().__init__(**{**kwargs, **names})
        self.decoder_start_token_id = decoder_start_token_id  # last: version 4 of transformers resets it


def model_config(values: dict[str, Any]) -> ModelConfig:
    """The ModelConfig of plain values. Raises ConfigError."""
    try:
        return ModelConfig.from_stored(values)
    except ConfigError as error:
        if "unknown part" in str(error):
            unknown = str(error).partition(" (known")[0].partition(";")[0]
            raise ConfigError(f"{unknown}: import the module that defines it before you load the model") from None
        raise
