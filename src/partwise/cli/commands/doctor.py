"""`doctor`: this machine's capabilities, what is missing, and the backends that each preset uses."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import torch

from partwise.cli.terminal import console, table
from partwise.compute.backend_plan import EAGER, BackendPlan, plan_config, shared_plans
from partwise.compute.backends import KINDS
from partwise.compute.backends.decoding import unsupported_layer
from partwise.compute.device_check import device_faults
from partwise.compute.runtime import choose_runtime, has_fast_bfloat16, machine_info, requested
from partwise.compute.timing import training_times
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, parse_overrides
from partwise.kernels import build, prebuilt
from partwise.kernels.library import kernel_build, kernels_available
from partwise.machine import cache_folder
from partwise.messages import quantity
from partwise.model import ModelConfig, meta_model
from partwise.presets import PRESETS, preset
from partwise.train.config import TrainConfig, preset_settings


def show_machine(names: list[str], overrides: list[str], time_steps: bool) -> None:
    """Print the machine's capabilities and the backends of these presets; nothing missing is an error."""
    if overrides and not names:
        raise ConfigError(
            f"{overrides[0]}: name the preset that it changes, as in `partwise doctor mingpt {overrides[0]}`"
        )
    if time_steps and not names:
        raise ConfigError("--time: name the presets to time, as in `partwise doctor mingpt --time`")
    runtime = choose_runtime(TrainConfig())
    runs = {name: settings_of(name, overrides) for name in names or DEFAULT_PRESETS}
    plans = {
        name: plan_config(run.model, choose_runtime(run.train), requested(run.train)) for name, run in runs.items()
    }
    console.print(table("this machine", ["", ""], capabilities(runtime.threads)))
    console.print(
        f"training defaults: train.device={runtime.device} train.precision={runtime.precision} "
        f"train.threads={runtime.threads}",
        markup=False,
    )
    for line in missing():
        console.print(f"missing: {line}", markup=False)
    rows = [
        (name, *map(format_counts, plan.counts().values()), generation_backend(runs[name].model))
        for name, plan in plans.items()
    ]
    headings = ["preset", "blocks", "attention", "ffn", "generation"]
    console.print(table("backends, with the number of layers", headings, rows))
    reasons = [
        (name, kind, text) for name, plan in plans.items() for kind, each in plan.reasons().items() for text in each
    ]
    if names and reasons:
        console.print(table("why layers do not use a faster backend", ["preset", "layers", "backend: reason"], reasons))
    for name in names if time_steps else ():
        show_rates(name, overrides, plans[name])
    console.print(
        "blocks: cpp runs a whole block in one C++ call; attention and ffn count the layers of the other blocks only. "
        "cpp: the C++ kernels; eager: plain torch operations (for blocks: layer by layer, with the backends in the next "
        "columns); sdpa: torch's scaled_dot_product_attention. All backends compute the same up to rounding. "
        "generation: cpp decodes a whole step in one C++ call; eager runs it layer by layer."
        + ("" if names else " `partwise doctor PRESET` says why a layer does not use a faster backend."),
        style="dim",
        markup=False,
    )


DEFAULT_PRESETS = [name for name in PRESETS if "-" not in name]
"""Presets of published sizes are slow to build."""


class Settings(NamedTuple):
    model: ModelConfig
    train: TrainConfig


def settings_of(name: str, overrides: list[str]) -> Settings:
    """The model and the training settings of a preset with overrides; prepares no data. Raises ConfigError."""
    values = reduce(apply_overrides, [parse_overrides(overrides)], preset_settings(name))
    train = TrainConfig.from_dict(values["train"], prefix="train")
    return Settings(preset(name, *(word for word in overrides if not is_run_setting(word))), train)


def is_run_setting(override: str) -> bool:
    """Whether an override is of training, data or tokenizer, not of the model."""
    return override.removeprefix("--").split("=")[0].split(".")[0] not in ModelConfig.model_fields


def show_rates(name: str, overrides: list[str], plan: BackendPlan) -> None:
    """Print the training rate with a plan, layer by layer and compiled; with overrides, also what missing kernels cost."""
    model, train = settings_of(name, overrides)
    runtime = choose_runtime(train)
    eager = plan_config(model, runtime, dict.fromkeys(KINDS, EAGER))
    times = training_times(model, {"plan": plan, "eager": eager}, runtime, train.batch_size)
    console.print(
        f"{' '.join([name, *overrides])}: {times['plan'].rate:,.0f} tokens/s with these backends, "
        f"{times['eager'].rate:,.0f} with eager layers ({times['eager'].step / times['plan'].step:.2f} times as fast)",
        markup=False,
    )
    if not runtime.compile:
        console.print(compiled_rate(model, train, plan), markup=False)
    if overrides:
        base = preset(name)
        models = {"base": meta_model(base), "changed": meta_model(model)}
        shared = shared_plans(models, runtime, requested(train))["base"]
        own = plan_config(base, runtime, requested(train))
        if own.difference(shared):
            times = training_times(base, {"own": own, "shared": shared}, runtime, train.batch_size)
            console.print(
                f"what the missing kernels cost: {name} alone trains at {times['own'].rate:,.0f} tokens/s, and at "
                f"{times['shared'].rate:,.0f} with the backends that it shares with {' '.join(overrides)} "
                f"({times['shared'].step / times['own'].step:.2f} times slower)",
                markup=False,
            )


def compiled_rate(model: ModelConfig, train: TrainConfig, plan: BackendPlan) -> str:
    """What torch.compile would cost and save beside a plan, measured in turn with it."""
    try:
        runtime = choose_runtime(train.model_copy(update={"compile": True}))
        compiled = plan_config(model, runtime, requested(train))
        times = training_times(model, {"plan": plan, "compiled": compiled}, runtime, train.batch_size, {"compiled"})
    except ConfigError as error:
        return f"with torch.compile: not measured: {error}"
    saved, seconds = times["plan"].step - times["compiled"].step, times["compiled"].preparation
    text = f"with torch.compile: {times['compiled'].rate:,.0f} tokens/s, after {seconds:.0f} s of compilation"
    if saved <= MIN_SAVED * times["plan"].step:
        return f"{text}: not faster"
    return f"{text}: train.compile=true saves time in runs of more than {math.ceil(seconds / saved):,} steps"


MIN_SAVED = 0.03
"""Share of a step that must be saved: rates of two runs differ by about as much."""


def capabilities(threads: int) -> Iterator[tuple[str, str]]:
    for name, value in machine_info().items():
        yield name, f"{value}, {quantity(threads, 'thread')} for torch" if name == "cores" else value
    yield "accelerator", accelerator()
    yield "bfloat16 matmul in hardware", "yes" if has_fast_bfloat16(choose_runtime(TrainConfig()).device) else "no"
    yield "C++ kernels", kernels() if kernels_available() else "none"
    yield "prepared data", str(cache_folder("data"))


def kernels() -> str:
    """Where the kernels come from, and their build."""
    origin = f"in {cache_folder('kernels')}" if prebuilt.wheel() is None else f"of the wheel, {prebuilt.variant().name}"
    return f"{origin}, build {kernel_build()}"


def accelerator() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if not torch.backends.mps.is_available():
        return "none"
    faults = device_faults("mps")
    passed = "equals the CPU in loss, gradients and a few steps: train.device=mps uses it"
    return f"Metal, which {passed}" if not faults else f"Metal, which is wrong here: {'; '.join(faults)}"


def missing() -> Iterator[str]:
    """Missing components that slow training, each with its remedy."""
    if kernels_available():
        return
    if prebuilt.wheel() is not None:
        yield "the C++ kernels (see above): falling back to torch"
        return
    try:
        build.find_compiler()
    except build.BuildError as error:
        one = "install one for faster training on the CPU (Debian: g++; macOS: `xcode-select --install`)"
        wheel = "install the wheel for Windows, which has the kernels, for faster training on the CPU"
        yield f"{error}: {wheel if sys.platform == 'win32' else one}"
    else:
        yield "the C++ kernels, which failed to compile (see above): falling back to torch"


def format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{backend} {number}" for backend, number in counts.most_common()) or "none"


def generation_backend(config: ModelConfig) -> str:
    """The backend of generation on this CPU: "cpp", or "eager" followed by the reason."""
    reason = unsupported_layer(meta_model(config))
    if reason is None and kernels_available():
        return "cpp"
    return "eager" if reason is None else f"eager: {reason}"
