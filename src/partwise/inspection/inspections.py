"""The inspections by name; knows no torch."""

from typing import NamedTuple


class Inspection(NamedTuple):
    """A module of this folder, whose `inspect(subject)` returns a page, and what that shows."""

    module: str
    about: str


INSPECTIONS = {
    "activations": Inspection("activation_page", "statistics of activations, layer by layer"),
    "attention": Inspection("attention", "attention maps and their entropy"),
    "coordinates": Inspection("coordinate_check", "sizes of activations by width, over a few steps"),
    "cost": Inspection("cost", "parameters, FLOPs, memory and cache of each part"),
    "gradients": Inspection("gradients", "gradient norms by group, layer and tensor"),
    "length": Inspection("length", "the loss by length and by position"),
    "logit-lens": Inspection("logit_lens", "what each layer would predict"),
    "lr-transfer": Inspection("lr_transfer", "the final loss by learning rate and width; trains many models"),
    "memory": Inspection("memory", "the memory of a training step"),
    "positions": Inspection("positions", "norms of embeddings and positions, wavelengths, biases"),
}
