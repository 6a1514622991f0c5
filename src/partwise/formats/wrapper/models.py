"""Decoders and encoder-decoders as models of `transformers`."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX
from partwise.formats.wrapper.base import CACHE_NAME, PartwiseModel, check_options
from partwise.formats.wrapper.configuration import PartwiseConfig
from partwise.model import Transformer


class PartwiseForCausalLM(PartwiseModel):
    """A decoder. Padding is left or right; a prompt to continue is padded left."""

    has_encoder = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """(B, T) ids -> logits (B, T, V); with labels (B, T), also the mean loss of predicting `labels[:, 1:]`.

        In training the loss includes the terms of the layers, as our own training does. Raises ConfigError.
        """
        options = check_options(kwargs)
        past = past_key_values if cache is None else cache

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            value: Tensor = self.loss_function(logits, targets, vocab_size=self.config.vocab_size, **options)
            return value

        result = self.run(input_ids, attention_mask, past, use_cache, None, labels, loss)
        return CausalLMOutputWithPast(loss=result[0], logits=result[1], **{CACHE_NAME: result[2]})


@dataclass
class PartwiseEncoder:
    """The encoder as `generate` calls it."""

    model: Transformer
    main_input_name: ClassVar[str] = "input_ids"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        memory, _ = self.model.encode(padded_source(self.model, input_ids, attention_mask), [])
        return BaseModelOutput(last_hidden_state=memory)

    __call__ = forward


def padded_source(model: Transformer, source: Tensor, mask: Tensor | None) -> Tensor:
    """The source with `padding_idx` where the mask is zero. Raises ConfigError."""
    if mask is None or mask.all():
        return source
    if model.config.padding_idx is None:
        raise ConfigError("the model has no padding_idx: pass sources of equal length without padding")
    if not mask[:, 0].all():
        raise ConfigError("attention_mask starts with padding: pad sources on the right")
    return source.masked_fill(mask == 0, model.config.padding_idx)


class PartwiseForSeq2SeqLM(PartwiseModel):
    """An encoder-decoder. Sources are padded right, with the model's `padding_idx`."""

    has_encoder = True

    def get_encoder(self, *args: Any, **kwargs: Any) -> PartwiseEncoder:
        return PartwiseEncoder(self.model)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """(B, T) labels -> the targets' start token, and all labels but the last. Raises ConfigError."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ConfigError("decoder_start_token_id is not set: set it in the config, or pass decoder_input_ids")
        shifted = F.pad(labels[:, :-1], (1, 0), value=start)
        return shifted.masked_fill(shifted == IGNORE_INDEX, self.model.config.padding_idx or 0)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Sources (B, M) and decoder ids (B, T) -> logits (B, T, V); with labels (B, T), also the mean loss.

        Without decoder ids these are the labels, shifted right. Raises ConfigError.
        """
        options = check_options(kwargs)
        past = past_key_values if cache is None else cache
        if decoder_input_ids is None:
            if labels is None:
                raise ConfigError("decoder_input_ids and labels are missing: pass one of them")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source: Tensor | tuple | None
        if encoder_outputs is not None:
            padding = None if attention_mask is None or attention_mask.all() else attention_mask == 0
            source = (encoder_outputs[0], padding)
        else:
            source = None if input_ids is None else padded_source(self.model, input_ids, attention_mask)

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            total = options.get("num_items_in_batch")
            values = F.cross_entropy(
                logits.float().flatten(0, 1), targets.flatten(), reduction="mean" if total is None else "sum"
            )
            return values if total is None else values / total

        result = self.run(decoder_input_ids, decoder_attention_mask, past, use_cache, source, labels, loss)
        return Seq2SeqLMOutput(loss=result[0], logits=result[1], **{CACHE_NAME: result[2]})


def wrap(model: Transformer, **token_ids: int | None) -> PartwiseForCausalLM | PartwiseForSeq2SeqLM:
    """A copy of the model as one of `transformers`, in eval mode.

    `token_ids` are pad_token_id, bos_token_id, eos_token_id and decoder_start_token_id, if there are such tokens.
    Raises ConfigError for an encoder alone.
    """
    model.check_generates()
    fitted = {
        f"{name}.{key}": list(tensor.shape)
        for name, layer in model.fitted_layers.items()
        for key, tensor in layer.named_buffers()
    }
    config = PartwiseConfig(model=model.config.to_stored(), fitted=fitted, **token_ids)
    own = copy.deepcopy(model)
    own.reset_backends()
    kind = PartwiseForSeq2SeqLM if config.is_encoder_decoder else PartwiseForCausalLM
    return kind(config, own).eval()
