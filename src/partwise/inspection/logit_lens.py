"""The logit lens: the model's prediction from the residual stream after each layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.compute.float64 import to_float64
from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX, Batch
from partwise.inspection.hooks import watch_modules
from partwise.inspection.subject import Subject
from partwise.model import Transformer
from partwise.plots.drawing import Drawing, draw
from partwise.plots.page import Page, PageFigure
from partwise.plots.plotting import (
    COLORS,
    add_color_scale,
    new_figure,
    new_subplots,
    set_integer_ticks,
    shorten,
)

MODULE_PATTERN = r"dropout|blocks\.\d+"
"""The input of the first block and the output of each: the decoder's residual stream, layer by layer."""

TOKENS = 4096  # sample size
MAX_LOGITS = 2**25  # maximum logits in memory
MAX_POSITIONS = 32  # columns of the prediction map, for short tokens


@dataclass(frozen=True)
class LayerPredictions:
    """Predictions by the logit lens after one layer, over every target of a sample."""

    name: str
    loss: float  # nats per token
    accuracy: float  # fraction of targets that are the top-1 token
    agreement: float  # fraction of targets whose top-1 token equals the last layer's
    probability: float  # mean probability of the target
    rank: float  # median rank of the target; 1 is the most likely token
    kl: float  # mean KL(last layer || this layer), nats


def residual_streams(model: Transformer, inputs: Tensor, source: Tensor | None = None) -> dict[str, Tensor]:
    """Tokens (B, T) -> the residual stream before the first block and after each.

    (B, T, D), or (B, T, n, D) with hyper-connections.
    """
    streams: dict[str, Tensor] = {}

    def record(name: str, inputs: object, output: Tensor) -> None:
        streams["embeddings" if name == "dropout" else f"layer {int(name.split('.')[1])}"] = output.clone()

    with watch_modules(model, MODULE_PATTERN, record):
        model(inputs, source=source)
    return streams | {"embeddings": model.residual.enter(streams["embeddings"])}


def logit_lens(model: Transformer, stream: Tensor) -> Tensor:
    """Residual stream after any layer -> logits (B, T, V), by the model's final norm, head and softcap.

    nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    logits: Tensor = model.head(model.residual.leave(stream))
    cap = model.config.logit_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def predictions_by_layer(
    model: Transformer, batches: list[tuple[Tensor, Tensor, Tensor | None]]
) -> list[LayerPredictions]:
    """From the embeddings to the last layer, over batches (inputs (B, T), targets (B, T), source).

    Ignores targets of -100.
    """
    metrics: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for inputs, targets, source in batches:
            mask = targets != IGNORE_INDEX
            target = targets[mask]
            streams = residual_streams(model, inputs, source)
            last = logit_lens(model, list(streams.values())[-1])[mask].log_softmax(-1)  # (N, V)
            for name, stream in streams.items():
                log_probs = logit_lens(model, stream)[mask].log_softmax(-1)
                metrics.setdefault(name, []).append(token_metrics(log_probs, last, target))
    return [LayerPredictions(name, *aggregate(torch.cat(parts, dim=1))) for name, parts in metrics.items()]


def token_metrics(log_probs: Tensor, last: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities (N, V) of a layer and of the last, targets (N,) -> (6, N): the metrics of LayerPredictions."""
    target_log_prob = log_probs.gather(-1, target[:, None])
    top = log_probs.argmax(-1)
    kl = F.kl_div(log_probs, last, reduction="none", log_target=True).sum(-1)
    rank = 1 + (log_probs > target_log_prob).sum(-1)
    target_log_prob = target_log_prob.squeeze(-1)
    return torch.stack(
        [
            to_float64(metric)
            for metric in (-target_log_prob, top == target, top == last.argmax(-1), target_log_prob.exp(), rank, kl)
        ]
    )


def aggregate(metrics: Tensor) -> list[float]:
    """(6, N) -> the mean over tokens, or for ranks, which have outliers, the median."""
    return [(metric.median() if index == 4 else metric.mean()).item() for index, metric in enumerate(metrics)]


def inspect(subject: Subject) -> Page:
    """Metrics by layer, and the most likely tokens of one row."""
    if subject.config.model.encoder_only:
        raise ConfigError("inspect logit-lens reads the layers of a decoder, and n_layers=0: choose another inspection")
    model, vocab_size = subject.model, subject.config.model.vocab_size
    sample = subject.sample(max(512, min(TOKENS, MAX_LOGITS // vocab_size)))
    batches = list(split_batch(subject, sample, vocab_size))
    layers = predictions_by_layer(model, batches)
    rows = [
        (
            layer.name,
            f"{layer.loss:.4g}",
            f"{layer.accuracy:.1%}",
            f"{layer.agreement:.1%}",
            f"{layer.probability:.3g}",
            f"{layer.rank:g}",
            f"{layer.kl:.3g}",
        )
        for layer in layers
    ]
    return Page(
        f"logit lens over {sample.n_targets:,} tokens of the validation split",
        "The logit lens applies the final norm and head to the residual stream after each layer. Loss is cross-entropy in "
        "nats per token; accuracy is the fraction of tokens whose top-1 prediction is correct, and agreement the fraction "
        "whose top-1 prediction equals the last layer's. Probability (mean) and rank (median, 1 is best) are those of the "
        "correct next token; KL is KL(last layer || this layer) in nats. The n-gram language model (ngram_lm=) is excluded. "
        f"A uniform prediction over {vocab_size:,} tokens has a loss of {np.log(vocab_size):.4g}.",
        ["after", "loss", "accuracy", "agreement", "probability", "rank", "KL"],
        rows,
        [layers_figure(layers), map_figure(subject)],
    )


def split_batch(subject: Subject, batch: Batch, vocab_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Smaller batches, so that the logits fit in memory."""
    rows = max(1, MAX_LOGITS // (batch.inputs.shape[1] * vocab_size))
    for first in range(0, len(batch.inputs), rows):
        source = None if batch.source is None else batch.source[first : first + rows]
        part = Batch(batch.inputs[first : first + rows], batch.targets[first : first + rows], source)
        inputs, source_ids = subject.tensors(part)
        yield inputs, torch.from_numpy(part.targets), source_ids


def layers_figure(layers: list[LayerPredictions]) -> PageFigure:
    """Loss, accuracy and agreement by layer."""
    figure, [[losses, fractions]] = new_subplots(2.6, "lens-layers", columns=2, width=8)
    depths = range(len(layers))
    losses.plot(depths, [layer.loss for layer in layers], color=COLORS[0], marker="o", markersize=3)
    losses.set_ylabel("loss in nats per token")
    for name, values, color in (
        ("accuracy", [layer.accuracy for layer in layers], COLORS[1]),
        ("agreement", [layer.agreement for layer in layers], COLORS[2]),
    ):
        fractions.plot(depths, [100 * value for value in values], color=color, marker="o", markersize=3, label=name)
    fractions.set_ylim(-3, 103)
    fractions.set_ylabel("% of tokens")
    fractions.legend(frameon=False, fontsize=9)
    for axes in (losses, fractions):
        axes.set_xlabel("number of layers")
    set_integer_ticks(losses, fractions)
    return PageFigure("Predictions by layer", draw(figure, "lens-layers"))


def map_figure(subject: Subject) -> PageFigure:
    """The top-1 token after every layer at every position of one row."""
    row = subject.row()
    inputs, source = subject.tensors(row)
    input_labels = subject.token_labels(row.inputs[0, :MAX_POSITIONS])
    with torch.no_grad():
        streams = residual_streams(subject.model, inputs, source)
        probabilities = {
            name: logit_lens(subject.model, stream)[0, :MAX_POSITIONS].softmax(-1) for name, stream in streams.items()
        }
    top = torch.stack([each.max(-1).values for each in probabilities.values()]).numpy()  # (layers + 1, T)
    predicted = [subject.token_labels(each.argmax(-1).numpy()) for each in probabilities.values()]
    target_labels = [
        "" if target == IGNORE_INDEX else subject.token_labels(np.array([target]))[0]
        for target in row.targets[0, :MAX_POSITIONS]
    ]
    longest = max(map(len, sum(predicted, input_labels + target_labels)))
    n = MAX_POSITIONS if longest <= 2 else MAX_POSITIONS // 2
    return PageFigure(
        "Most likely next token after each layer",
        draw_map(list(probabilities), top[:, :n], predicted, input_labels[:n], target_labels[:n]),
        "Columns are positions, with the input token below and the correct next token above. Cells show the most likely "
        "next token after that layer, in bold if correct; darker means more likely.",
    )


def draw_map(
    names: list[str], top: np.ndarray, predicted: list[list[str]], input_labels: list[str], target_labels: list[str]
) -> Drawing:
    layers, positions = top.shape
    size = 7.5 if positions > MAX_POSITIONS // 2 else 8.5
    width = max(7.0, 1.2 + positions * (8.8 / MAX_POSITIONS if size < 8 else 0.55))
    figure, axes = new_figure(0.9 + 0.27 * layers, "lens-map", width=width)
    image = axes.imshow(top, aspect="auto", cmap="Blues", vmin=0, vmax=1, origin="lower")
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size}
    for layer, position in np.ndindex(layers, positions):
        axes.text(
            position,
            layer,
            shorten(predicted[layer][position]),
            color="white" if top[layer, position] > 0.6 else "#202124",
            fontweight="bold" if predicted[layer][position] == target_labels[position] else "normal",
            **style,
        )
    axes.set_yticks(range(layers), names)
    axes.set_xticks(range(positions), [shorten(label) for label in input_labels], fontsize=size)
    above = axes.secondary_xaxis("top")
    above.set_xticks(range(positions), [shorten(label) for label in target_labels], fontsize=size)
    for each in (axes, above):
        each.tick_params(length=0)
        for spine in each.spines.values():
            spine.set_visible(False)
    add_color_scale(figure, image, axes, "probability")
    return draw(figure, "lens-map")
