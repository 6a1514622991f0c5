"""Trains, samples and inspects a small model with each part on the pretended device; its logits are those of the CPU."""

import copy
import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from partwise.config import REGISTRY
from partwise.data import IGNORE_INDEX
from partwise.generation.beam_search import beam_search
from partwise.generation.generate import decode
from partwise.generation.sampling import Sampling, uniform_numbers
from partwise.inspection.activations import record_activations
from partwise.inspection.attention import attention_statistics
from partwise.inspection.logit_lens import predictions_by_layer
from partwise.inspection.positions import input_norms, median_min_max
from partwise.model import ModelConfig, Transformer
from partwise.train.optimizers import Optimizer
from recipes import LENGTH, MODEL_PARTS, VOCAB, configs, error, logits_of, perturbed, source_of, tokens

DEVICE = torch.device("pretended")
SAMPLINGS = (Sampling(0.0), Sampling(0.8), Sampling(1.0, top_k=3, top_p=0.7))


@settings(max_examples=1, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def check(family: str, name: str, data: st.DataObject) -> None:
    on_cpu = perturbed(data.draw(configs(family, name)), dtype=torch.float32)
    model, inputs = copy.deepcopy(on_cpu).to(DEVICE), tokens(length=4).to(DEVICE)
    assert error(logits_of(model, inputs).cpu(), logits_of(on_cpu, inputs.cpu())) < 1e-5, (family, name)
    sample(model, inputs)
    inspect(model, inputs)


def sample(model: Transformer, inputs: torch.Tensor) -> None:
    uniform, source = uniform_numbers(range(2), LENGTH - 3, 0, DEVICE), source_of(model, inputs.cpu())
    source = None if source is None else source.to(DEVICE)
    for sampling in SAMPLINGS:
        list(decode(model, inputs, uniform, sampling, source=source))
    row = None if source is None else source[:1]
    beam_search(model, inputs[:1], num_beams=2, max_new_tokens=LENGTH - 3, eos_id=VOCAB - 1, source=row)


def inspect(model: Transformer, inputs: torch.Tensor) -> None:
    source = source_of(model, inputs.cpu())
    source, targets = None if source is None else source.to(DEVICE), inputs.roll(-1, 1)
    targets[:, -1] = IGNORE_INDEX
    attention_statistics(model, inputs, source)
    record_activations(model, inputs, source, 3)
    predictions_by_layer(model, [(inputs, targets, source)])
    median_min_max(input_norms(model, inputs, LENGTH).embeddings)


def train(optimizer: str) -> None:
    """Two steps of a small model."""
    model = Transformer(ModelConfig(vocab_size=VOCAB, d_model=8, n_layers=1, context_length=LENGTH)).to(DEVICE)
    optimization = Optimizer.resolve(optimizer).build(model, 1e-3)
    for _ in range(2):
        optimization.zero_grad()
        model(tokens().to(DEVICE)).logsumexp(-1).mean().backward()
        optimization.step()


if __name__ == "__main__":
    for family, name in MODEL_PARTS:
        check(family, name)
    for name in REGISTRY["optimizer"]:
        train(name)
