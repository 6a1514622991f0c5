"""The table of families, and the choice of one for a configuration."""

from collections.abc import Mapping
from typing import Any

from partwise.config import ConfigError, did_you_mean
from partwise.formats.huggingface.deepseek import DeepSeekV3
from partwise.formats.huggingface.family import Family
from partwise.formats.huggingface.function import describe, differences
from partwise.formats.huggingface.gemma import Gemma2
from partwise.formats.huggingface.gpt2 import GPT2, MPT, OPT
from partwise.formats.huggingface.llama import Arcee, Llama, Mistral, Olmo2, Qwen2, Qwen3, SmolLM3
from partwise.formats.huggingface.nanochat import NanoChat
from partwise.formats.huggingface.neox import GPTNeoX, StableLM
from partwise.formats.huggingface.values import Values, show
from partwise.formats.huggingface.widening import widen
from partwise.model import ModelConfig

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Llama(),
        Mistral(),
        Qwen2(),
        Qwen3(),
        SmolLM3(),
        Arcee(),
        GPT2(),
        GPTNeoX(),
        StableLM(),
        Olmo2(),
        Gemma2(),
        NanoChat(),
        OPT(),
        MPT(),
        DeepSeekV3(),
    )
}
"""By `model_type`; of several families for a configuration, the first is chosen."""


def read_config(values: Mapping[str, Any], source: str) -> tuple[Family, ModelConfig]:
    """The family and our configuration of a `config.json`. Raises ConfigError naming the key that is not understood."""
    if "auto_map" in values:
        raise ConfigError(
            f"{source}: auto_map names code in the folder, which is never run: import a model of a family that "
            "`transformers` itself contains"
        )
    if values.get("quantization_config") is not None:
        raise ConfigError(f"{source}: quantization_config: quantized weights are not supported: import the original")
    name = values.get("model_type")
    if name == "partwise":
        raise ConfigError(
            f"{source}: model_type=partwise can be loaded only by `transformers`: use the run that it was exported from"
        )
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(f"{source}: model_type={show(name)} is not supported{did_you_mean(str(name)[:40], FAMILIES)}")
    family = FAMILIES[name]
    architectures = values.get("architectures")
    if architectures is not None and architectures not in ([family.architecture], [family.base]):
        raise ConfigError(f"{source}: architectures={show(architectures)}: only {family.architecture} is supported")
    reader = Values(values, source)
    reader.expect("is_encoder_decoder", False)
    settings = family.read(reader)
    reader.finish()
    try:
        return family, ModelConfig.from_dict(settings)
    except ConfigError as error:
        raise ConfigError(f"{source} does not describe a model that can be built: {error}") from None


def choose_family(config: ModelConfig, name: str | None = None) -> tuple[Family, ModelConfig]:
    """The family that computes what this configuration does, and the configuration as the family writes it.

    The latter may have more parameters, which `widen` sets to zeros and ones. Raises ConfigError naming what the closest
    family lacks; `name` restricts the choice to one family.
    """
    if name is not None and name not in FAMILIES:
        raise ConfigError(f"--family {name}: unknown family{did_you_mean(name, [*FAMILIES, 'partwise'])}")
    candidates = [FAMILIES[name]] if name else list(FAMILIES.values())
    closest: tuple[Family, list[str]] | None = None
    for widened in (False, True):
        for family in candidates:
            wide = widen(config, family.changes(describe(config)) if widened else {})
            missing = mismatches(family, wide or config)
            if wide is not None and not missing:
                return family, wide
            if widened and (closest is None or len(missing) < len(closest[1])):
                closest = family, missing
    assert closest is not None
    family, missing = closest
    reason = "; ".join(missing[:3])
    if name:
        raise ConfigError(f"{family.title} cannot compute this model: {reason}")
    raise ConfigError(
        f"no family of `transformers` can compute this model: the closest is {family.title}: {reason}; --family partwise "
        "writes it for programs that have partwise"
    )


def mismatches(family: Family, config: ModelConfig) -> list[str]:
    """The options that the family cannot express, as `option=value (family: other value)`; empty if there are none."""
    function = describe(config)
    try:
        settings = family.read(Values(family.write(function), family.title))
        restored = describe(ModelConfig.from_dict(settings))
    except ConfigError as error:
        return [str(error)]
    return [
        f"{path}={show(ours)} ({family.title}: {show(other)})" for path, ours, other in differences(function, restored)
    ]
