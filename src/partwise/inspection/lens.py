"""What a model would say if it ended after each layer: the logit lens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.data import IGNORED, Batch
from partwise.drawing import COLOURS, canvas, canvases, cut, svg
from partwise.inspection.page import Figure, Look
from partwise.inspection.recording import watching
from partwise.inspection.subject import Subject
from partwise.model import Transformer

SITES = r"dropout|blocks\.\d+"
"""What goes into the first block, and what each block leaves: the residual stream of a decoder, layer by layer."""

TOKENS = 4096  # of the sample
NUMBERS = 2**25  # logits that are held at once
PLACES = 32  # columns of the map, where tokens are short


@dataclass(frozen=True)
class Layer:
    """What the model's own end makes of the residual stream after a layer, over every target of a sample."""

    name: str
    loss: float  # nats per token
    right: float  # share of targets that are the most likely token
    settled: float  # share of targets where the most likely token is that of the last layer
    probability: float  # of the true token, its mean
    rank: float  # of the true token, its median; 1 is the most likely one
    to_last: float  # nats: the mean divergence KL(last || this)


def streams(model: Transformer, inputs: Tensor, source: Tensor | None = None) -> dict[str, Tensor]:
    """Tokens (B, T) -> what goes into the first block, and what every block leaves, as the wiring holds it.

    (B, T, D), or (B, T, n, D) under hyper-connections.
    """
    found: dict[str, Tensor] = {}

    def take(name: str, inputs: object, output: Tensor) -> None:
        found["embeddings" if name == "dropout" else f"layer {int(name.split('.')[1])}"] = output.clone()

    with watching(model, SITES, take):
        model(inputs, source=source)
    return found | {"embeddings": model.residual.enter(found["embeddings"])}


def lens(model: Transformer, stream: Tensor) -> Tensor:
    """The residual stream after some layer -> logits (B, T, V), by the norm, head and cap behind the last layer.

    nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    logits: Tensor = model.head(model.residual.leave(stream))
    cap = model.config.head_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def layers(model: Transformer, pieces: list[tuple[Tensor, Tensor, Tensor | None]]) -> list[Layer]:
    """Every layer from the embeddings to the last, over (inputs (B, T), targets (B, T), source) of one or more batches.

    Targets of -100 are left out.
    """
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for inputs, targets, source in pieces:
            scored = targets != IGNORED
            true = targets[scored]
            after = streams(model, inputs, source)
            last = lens(model, list(after.values())[-1])[scored].log_softmax(-1)  # (N, V)
            for name, stream in after.items():
                own = lens(model, stream)[scored].log_softmax(-1)
                found.setdefault(name, []).append(judged(own, last, true))
    return [Layer(name, *summed(torch.cat(parts, dim=1))) for name, parts in found.items()]


def judged(own: Tensor, last: Tensor, true: Tensor) -> Tensor:
    """Log-probabilities (N, V) of a layer and of the last, true tokens (N,) -> (6, N): the fields of Layer, one by one."""
    of_true = own.gather(-1, true[:, None])
    top = own.argmax(-1)
    divergence = F.kl_div(own, last, reduction="none", log_target=True).sum(-1)
    rank = 1 + (own > of_true).sum(-1)
    of_true = of_true.squeeze(-1)
    return torch.stack(
        [each.double() for each in (-of_true, top == true, top == last.argmax(-1), of_true.exp(), rank, divergence)]
    )


def summed(judgements: Tensor) -> list[float]:
    """(6, N) -> means over the tokens, but of ranks, of which a few are huge, the median."""
    return [(row.median() if place == 4 else row.mean()).item() for place, row in enumerate(judgements)]


def look(subject: Subject) -> Look:
    model, vocabulary = subject.model, subject.config.model.vocab_size
    sample = subject.sample(max(512, min(TOKENS, NUMBERS // vocabulary)))
    pieces = list(in_pieces(subject, sample, vocabulary))
    found = layers(model, pieces)
    rows = [
        (
            layer.name,
            f"{layer.loss:.4g}",
            f"{layer.right:.1%}",
            f"{layer.settled:.1%}",
            f"{layer.probability:.3g}",
            f"{layer.rank:g}",
            f"{layer.to_last:.3g}",
        )
        for layer in found
    ]
    return Look(
        f"what it would predict after each layer, over {sample.count:,} tokens of the validation split",
        "The logit lens: the residual stream after each layer goes straight to the norm and the head behind the last one. "
        "Loss is cross-entropy in nats per token; right is the share of tokens that are the most likely one, and settled "
        "the share where the most likely one is already that of the last layer. Probability (mean) and rank (median, 1 "
        "is best) are those of the true next token; KL is the divergence of the last layer's prediction from this one, "
        "in nats. What is counted (counts=) is left out. "
        f"Guessing evenly among {vocabulary:,} tokens has a loss of {np.log(vocabulary):.4g}.",
        ["after", "loss", "right", "settled", "probability", "rank", "KL"],
        rows,
        [by_layer(found), map_of(subject)],
    )


def in_pieces(subject: Subject, batch: Batch, vocabulary: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """A batch in pieces of a few rows, so that the logits of one fit in memory."""
    rows = max(1, NUMBERS // (batch.inputs.shape[1] * vocabulary))
    for first in range(0, len(batch.inputs), rows):
        source = None if batch.source is None else batch.source[first : first + rows]
        piece = Batch(batch.inputs[first : first + rows], batch.targets[first : first + rows], source)
        inputs, source_ids = subject.tensors(piece)
        yield inputs, torch.from_numpy(piece.targets), source_ids


def by_layer(found: list[Layer]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, [[losses, shares]] = canvases(2.6, "lens-layers", columns=2, width=8)
    places = range(len(found))
    losses.plot(places, [layer.loss for layer in found], color=COLOURS[0], marker="o", markersize=3)
    losses.set_ylabel("loss in nats per token")
    for name, values, colour in (
        ("right", [layer.right for layer in found], COLOURS[1]),
        ("settled", [layer.settled for layer in found], COLOURS[2]),
    ):
        shares.plot(places, [100 * value for value in values], color=colour, marker="o", markersize=3, label=name)
    shares.set_ylim(-3, 103)
    shares.set_ylabel("% of tokens")
    shares.legend(frameon=False, fontsize=9)
    for axes in (losses, shares):
        axes.set_xlabel("layers passed")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return Figure("Layer by layer", svg(figure, "lens-layers"))


def map_of(subject: Subject) -> Figure:
    """The most likely token after every layer at every place of one row."""
    row = subject.row()
    inputs, source = subject.tensors(row)
    read = subject.symbols(row.inputs[0, :PLACES])
    with torch.no_grad():
        after = streams(subject.model, inputs, source)
        chances = {name: lens(subject.model, stream)[0, :PLACES].softmax(-1) for name, stream in after.items()}
    top = torch.stack([each.max(-1).values for each in chances.values()]).numpy()  # (layers + 1, T)
    said = [subject.symbols(each.argmax(-1).numpy()) for each in chances.values()]
    wanted = ["" if true == IGNORED else subject.symbols(np.array([true]))[0] for true in row.targets[0, :PLACES]]
    places = PLACES if max(map(len, sum(said, read + wanted))) <= 2 else PLACES // 2  # long tokens need their room
    return Figure(
        "The most likely next token after each layer",
        draw_map(list(chances), top[:, :places], said, read[:places], wanted[:places]),
        "Each column is a place of the text: below stands the token read there, above the one that follows. Each cell "
        "is the most likely next token at that layer, bold where it is the true one; the darker, the more likely.",
    )


def draw_map(names: list[str], top: np.ndarray, said: list[list[str]], read: list[str], wanted: list[str]) -> str:
    layers, places = top.shape
    size = 7.5 if places > PLACES // 2 else 8.5
    figure, axes = canvas(
        0.9 + 0.27 * layers, "lens-map", width=max(7.0, 1.2 + places * (8.8 / PLACES if size < 8 else 0.55))
    )
    image = axes.imshow(top, aspect="auto", cmap="Blues", vmin=0, vmax=1, origin="lower")
    plain: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size}
    for layer, place in np.ndindex(layers, places):
        axes.text(
            place,
            layer,
            cut(said[layer][place]),
            color="white" if top[layer, place] > 0.6 else "#202124",
            fontweight="bold" if said[layer][place] == wanted[place] else "normal",
            **plain,
        )
    axes.set_yticks(range(layers), names)
    axes.set_xticks(range(places), [cut(token) for token in read], fontsize=size)
    above = axes.secondary_xaxis("top")
    above.set_xticks(range(places), [cut(token) for token in wanted], fontsize=size)
    for each in (axes, above):
        each.tick_params(length=0)
        for spine in each.spines.values():
            spine.set_visible(False)
    figure.colorbar(image, ax=axes, label="probability", fraction=0.03, pad=0.01)
    return svg(figure, "lens-map")
