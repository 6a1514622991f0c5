"""The base of wrapped decoders and encoder-decoders: loading, tied weights, the cache of `generate`, padding, the loss."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel, TrainerCallback
from transformers.modeling_outputs import CausalLMOutputWithPast

from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX
from partwise.formats.wrapper.configuration import PartwiseConfig, model_config
from partwise.model import Transformer
from partwise.model.cache import Cache
from partwise.parts.layers import separate_projections

# transformers has renamed the cache in 5.24: the argument and the output of `forward`, and what `generate` hands on
CACHE_NAME = "cache" if "cache" in {f.name for f in dataclasses.fields(CausalLMOutputWithPast)} else "past_key_values"


class PartwiseCache:
    """The cache of a model in `generate`; its layers are allocated in the first forward pass."""

    is_compileable = False  # transformers compiles only its own static caches
    is_linear = (False,)  # no layer keeps a sum in place of its keys and values
    is_croppable = False  # it would keep a layer's past, as only its own caches can

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self.cache: Cache | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.cache.length if self.cache else 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.cache:
            self.cache.select(beam_idx)

    def crop(self, length: int) -> None:
        """Keep the first `length` positions; a negative number drops that many from the end, 0 none. Raises ConfigError."""
        if self.cache and length:
            self.cache.truncate(length if length >= 0 else self.cache.length + length)


class AfterStep(TrainerCallback):
    """Update routers with bias-based balancing after each optimizer step: `Trainer(..., callbacks=[AfterStep()])`."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for module in model.modules():
            if isinstance(module, Transformer):
                module.after_step()


class PartwiseModel(PreTrainedModel, GenerationMixin):
    """The base of both kinds of model. Projections are separate linear layers, named as in our checkpoints."""

    config_class = PartwiseConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = False
    _supports_sdpa = _supports_flash_attn = False  # our backends choose the kernel, not attn_implementation
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    has_encoder: ClassVar[bool]

    def __init__(self, config: PartwiseConfig, model: Transformer | None = None) -> None:
        super().__init__(config)
        if config.is_encoder_decoder != self.has_encoder:
            other = "PartwiseForSeq2SeqLM" if config.is_encoder_decoder else "PartwiseForCausalLM"
            raise ConfigError(f"encoder_layers={config.model['encoder_layers']}: load the model with {other}")
        self.model = model or Transformer(model_config(config.model))
        for name, layer in {} if model else self.model.fitted_layers.items():
            shapes = {key: shape for key, shape in config.fitted.items() if key.startswith(f"{name}.")}
            layer.allocate({key.removeprefix(f"{name}."): torch.empty(shape) for key, shape in shapes.items()})
        separate_projections(self.model)
        self._tied_weights_keys = {
            f"model.{name}": f"model.{source}" for name, source in self.model.tied_parameters().items()
        }
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in `transformers`, from safetensors only. Raises ConfigError for tensors that are missing or left over."""
        kwargs.setdefault("use_safetensors", True)
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info.get(kind):
                first = sorted(map(str, info[kind]))[0]
                raise ConfigError(f"{args[0]}: {len(info[kind])} {kind.replace('_', ' ')}, such as {first}")
        for name, layer in model.model.fitted_layers.items():
            if damage := layer.find_damage(dict(layer.named_buffers())):
                raise ConfigError(f"{args[0]} is damaged: {name}.{damage}")
        return (model, info) if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # the constructor has initialized the weights; only buffers that are not saved are still undefined after loading
        for name in module._non_persistent_buffers_set:
            module.get_buffer(name).zero_()

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        self.model.tie_weights()  # its state dict has tied matrices once, so that none is missing in a file

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Raises ConfigError."""
        raise ConfigError("the embeddings cannot be resized: train a model with a larger vocab_size")

    def _supports_default_dynamic_cache(self) -> bool:
        return False

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        # called once the length is known, before the first forward pass
        limit = self.model.config.context_length
        if generation_config.max_length > limit + 1:  # the last token is not an input
            raise ConfigError(
                f"max_length={generation_config.max_length} does not fit context_length={limit}: lower max_new_tokens"
            )
        if generation_config.use_cache and model_kwargs.get(CACHE_NAME) is None:
            model_kwargs[CACHE_NAME] = PartwiseCache(generation_config.max_length)

    def run(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        past: PartwiseCache | None,
        use_cache: bool | None,
        source: Tensor | tuple | None,
        labels: Tensor | None,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor | None, Tensor, PartwiseCache | None]:
        """(B, T) ids -> the loss if there are labels, logits (B, T, V), and the cache if it is used."""
        if past is not None and not isinstance(past, PartwiseCache):
            raise ConfigError(f"{CACHE_NAME}={type(past).__name__}: expected the cache that the model returned")
        past = PartwiseCache() if past is None and use_cache else past
        auxiliary, mtp_logits = list[Tensor](), list[Tensor]()
        training = self.training and labels is not None
        weight = self.model.ahead.loss_weight_at(1.0) if training else 0.0
        extra: dict[str, Any] = {"aux_losses": auxiliary, "mtp_logits": mtp_logits if weight else None}
        if past is not None or isinstance(source, tuple):
            holder = past or PartwiseCache(tokens.shape[1])
            if holder.cache is None:
                holder.cache = self.model.new_cache(len(tokens), holder.max_length, source)
            extra["cache"] = holder.cache
        else:
            extra["source"] = source
        logits = self.model(tokens, document_ids=document_ids(tokens, mask, past), **extra)
        if labels is None:
            return None, logits, past
        total = loss(logits, labels)
        if training:
            for k, logits_k in enumerate(mtp_logits, start=1):
                total = total + weight * loss(logits_k, F.pad(labels[:, k:], (0, k), value=IGNORE_INDEX))
            total = total + sum(auxiliary)
        return total, logits, past


def document_ids(tokens: Tensor, mask: Tensor | None, past: PartwiseCache | None) -> Tensor | None:
    """Padding as a document of its own, -1, before that of the tokens, 0; None without padding. Raises ConfigError."""
    length = past.get_seq_length() if past else 0
    if mask is None or (length and tokens.shape[1] == 1):  # a new token continues the last document
        return None
    if mask.dim() != 2 or mask.shape[1] not in (tokens.shape[1], length + tokens.shape[1]):
        raise ConfigError(f"attention_mask of shape {list(mask.shape)}: expected one number for each token")
    ids = (mask != 0).long() - 1
    if (ids == 0).all():
        return None
    borders = (ids[:, 1:] != ids[:, :-1]).sum(dim=1)
    if (borders > 1 + (ids[:, 0] < 0).long()).any():
        raise ConfigError("attention_mask has padding between tokens: pad before or after the text")
    return ids[:, -tokens.shape[1] :]


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the loss. Raises ConfigError for an option that would have no effect."""
    loss = {key: options.pop(key) for key in ("num_items_in_batch",) if key in options}
    for key, value in options.items():
        if value is not None and value is not False and key not in ("logits_to_keep", "return_dict", "cache_position"):
            raise ConfigError(f"{key} is not supported by the models of partwise: leave it out")
    return loss
