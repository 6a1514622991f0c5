"""Activation checkpointing computes the same losses and gradients, once per step, and keeps less memory."""

import pytest
import torch

from partwise.inspection.memory import step_memory
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run

SMALL = (
    "d_model=16 n_layers=3 attention.n_heads=2 context_length=32 train.seq_len=32 train.batch_size=4 train.steps=100 "
    "train.device=cpu train.precision=float32 data.train=500 data.validation=20 data.test=5"
)
CASES = {
    "mingpt": "mingpt data=arithmetic embed_dropout=0.1",
    "dropout": "gpt2 data=arithmetic residual.dropout=0.2 attention.dropout=0.1",
    "llama": "llama data=arithmetic",
    "value residual": "llama data=arithmetic attention.value_residual=true",
    "experts": "mingpt data=arithmetic ffn=moe ffn.n_experts=4 ffn.load_balancing=aux_loss",
    "balanced experts": "mingpt data=arithmetic ffn=moe ffn.n_experts=4 ffn.load_balancing=bias",
    "pairs": "original data=arithmetic_pairs encoder_layers=2",
    "trained position bias": "mingpt data=arithmetic positions=t5",
    "fixed position bias": "mingpt data=arithmetic positions=alibi",
    "mtp": "mingpt data=arithmetic mtp=heads",
    "accumulation": "mingpt data=arithmetic train.grad_accumulation=2",
}


def config(case: str, *more: str) -> RunConfig:
    preset, *words = CASES[case].split()
    return run_config(preset, *SMALL.split(), *words, *more)


def steps(case: str, setting: bool, kernels: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and gradient norms of three steps, and all state after them."""
    backends = [] if kernels else [f"train.{kind}_backend=eager" for kind in ("block", "attention", "ffn")]
    run = Run(config(case, f"train.activation_checkpointing={str(setting).lower()}", *backends))
    if not kernels:
        run.model.double()
    values = [value for step in (run.update() for _ in range(3)) for value in (step.loss, step.grad_norm)]
    return values, run.model.state_dict()


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_same(case: str, kernels: bool) -> None:
    (expected, weights), (found, again) = (steps(case, setting, kernels) for setting in (False, True))
    assert found == pytest.approx(expected, rel=1e-12 if not kernels else 1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-9, atol=1e-12 if not kernels else 1e-4, msg=name)


def test_only_the_inputs_of_blocks_are_kept() -> None:
    sizes = ("n_layers=8", "context_length=64", "train.seq_len=64", "train.batch_size=16", "d_model=64")
    kept, again = (
        step_memory(config("llama", *sizes, f"train.activation_checkpointing={setting}"), "float32")
        for setting in ("false", "true")
    )
    assert (again.weights, again.gradients, again.optimizer) == (kept.weights, kept.gradients, kept.optimizer)
    inputs = 8 * 16 * 64 * 64 * 4
    assert again.activations < kept.activations / 4
    assert again.activations > inputs
    assert again.peak < kept.peak / 2


def test_evaluation_and_sampling_do_not_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config("mingpt", "train.activation_checkpointing=true"))
    monkeypatch.setattr("partwise.model.activation_checkpointing.checkpoint", None)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with torch.no_grad():
        logits = run.model.eval()(tokens)
        cached = run.model(tokens, run.model.new_cache(1))
    torch.testing.assert_close(cached, logits)
    with pytest.raises(TypeError):  # `checkpoint` is no function any more
        run.model.train()(tokens)


def test_experts_count_each_token_once() -> None:
    run = Run(config("balanced experts", "train.activation_checkpointing=true"))
    batch = run.batch()
    run.model.train().seed_dropout(0, 0)
    run.training_losses(batch).total(1, 1).backward()
    loads = [buffer.sum().item() for name, buffer in run.model.named_buffers() if name.endswith("load")]
    n_selected = run.config.model.ffn.top_k * batch.inputs.size
    assert len(loads) == 3 and set(loads) == {n_selected}
