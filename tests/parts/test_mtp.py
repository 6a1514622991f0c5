"""Multi-token prediction: its loss against a loop over positions, and no effect outside training."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from partwise.compute.backends.decoding import Decoder, unsupported_reason
from partwise.data import IGNORE_INDEX, Batch
from partwise.evaluate.loss import mean_loss
from partwise.inspection.cost import compute_costs
from partwise.kernels import decoding_weights
from partwise.parts.contracts import LayerContext
from partwise.parts.mtp import MTPHeads
from partwise.train.config import RunConfig, run_config
from partwise.train.cross_entropy import shift_targets
from partwise.train.loop import Run
from partwise.train.metrics import read_metrics
from partwise.train.optimizers import Optimizer
from partwise.train.run_folder import Interrupted, RunFolder

Tiny = Callable[..., RunConfig]
TOKENS, WEIGHT = 3, 0.7
HEADS = ["mtp=heads", f"mtp.n_tokens={TOKENS}", f"mtp.loss_weight={WEIGHT}"]
PLAIN = ["train.attention_backend=eager", "train.ffn_backend=eager", "train.block_backend=eager", "train.threads=1"]
DATA = {
    "windows of text": [],
    "answers within windows": ["data.answer_only_loss=true"],
    "answers of aligned problems": [
        "data.aligned=true",
        "data.answer_only_loss=true",
        "data.padding=0",
        "context_length=40",
    ],
    "pairs": ["encoder_layers=1", "n_layers=1", "data=arithmetic_pairs", "context_length=32"],
    "smoothed": ["train.label_smoothing=0.2", "logit_softcap=2.0", "tie_embeddings=true", "head_bias=true"],
    "windows of two tokens": ["train.seq_len=2"],
}


def double(config: RunConfig) -> Run:
    run = Run(config)
    run.model.double()
    run.optimizer = config.optimizer.build(run.model, config.train.lr)
    return run


def losses_by_position(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """The next-token loss and the MTP loss per target, position by position."""
    seen: list[Tensor] = []
    handle = run.model.head.register_forward_pre_hook(lambda head, inputs: seen.append(inputs[0]))
    source = None if batch.source is None else torch.from_numpy(batch.source)
    logits = run.model(torch.from_numpy(batch.inputs), source=source)
    handle.remove()
    weights = [run.model.get_parameter(f"ahead.heads.{number}.weight") for number in range(TOKENS)]
    smoothing, targets = run.config.train.label_smoothing, batch.targets.tolist()

    def loss_of(scores: Tensor, target: int) -> Tensor:
        log_p = scores.log_softmax(-1)
        return -(1 - smoothing) * log_p[target] - smoothing * log_p.mean()

    next_token, mtp, count = torch.zeros(()), torch.zeros(()), 0
    for row, wanted in enumerate(targets):
        for position, target in enumerate(wanted):
            if target == IGNORE_INDEX:
                continue
            count += 1
            next_token = next_token + loss_of(logits[row, position], target)
            for further, weight in enumerate(weights, start=1):
                if position + further < len(wanted) and wanted[position + further] != IGNORE_INDEX:
                    mtp = mtp + WEIGHT * loss_of(weight @ seen[0][row, position], wanted[position + further])
    return next_token / count, mtp / count


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("words", DATA.values(), ids=DATA)
def test_training_step_equals_a_loop_over_positions(words: list[str], accumulate: int, tiny: Tiny) -> None:
    run = double(tiny(*PLAIN, *HEADS, *words, f"train.grad_accumulation={accumulate}"))
    next_token, mtp = losses_by_position(run, run.batch())
    (next_token + mtp).backward()
    expected = {name: parameter.grad for name, parameter in run.model.named_parameters()}
    run.optimizer.zero_grad(set_to_none=True)
    found: dict[str, Tensor | None] = {}
    run.optimizer.step = lambda: found.update(  # type: ignore[method-assign, misc]
        {name: parameter.grad for name, parameter in run.model.named_parameters()}
    )
    step = run.update()
    assert step.loss == pytest.approx(next_token.item(), rel=1e-12)  # only the next-token loss is reported
    assert mtp.item() > 0.1
    largest = max(gradient.abs().max() for gradient in expected.values() if gradient is not None)
    for name, gradient in expected.items():
        one = found[name]
        if gradient is None:  # heads beyond the end of every row
            assert one is None or not one.any()
        else:
            assert one is not None and (one - gradient).abs().max() <= 1e-12 * largest, name
    reached = [name for name in expected if name.startswith("ahead.") and expected[name] is not None]
    assert len(reached) == (1 if "train.seq_len=2" in words else TOKENS)


def test_shifted_targets_stay_within_their_row() -> None:
    targets = torch.tensor([[1, 2, IGNORE_INDEX, 4, 5], [6, 7, 8, IGNORE_INDEX, 9]])
    no = IGNORE_INDEX
    assert shift_targets(targets, 1).tolist() == [[2, no, no, 5, no], [7, 8, no, no, no]]
    assert shift_targets(targets, 2).tolist() == [[no, 4, no, no, no], [8, no, 9, no, no]]
    for shift in (5, 6, 10):
        assert (shift_targets(targets, shift) == IGNORE_INDEX).all()


def test_heads_are_neither_computed_nor_trained_before_start_fraction(tiny: Tiny) -> None:
    run, plain = (
        Run(tiny(*PLAIN, "optimizer.weight_decay=0.1", *words)) for words in ([*HEADS, "mtp.start_fraction=0.5"], [])
    )
    heads = [parameter.detach().clone() for parameter in run.model.ahead.parameters()]
    calls: list[int] = []
    run.model.ahead.register_forward_hook(lambda *_: calls.append(run.step))
    for _ in range(3):
        assert run.update().grad_norm == plain.update().grad_norm
    assert not calls
    assert all(torch.equal(*pair) for pair in zip(run.model.ahead.parameters(), heads, strict=True))
    assert run.update().grad_norm > plain.update().grad_norm
    assert calls == [3]
    assert not any(torch.equal(*pair) for pair in zip(run.model.ahead.parameters(), heads, strict=True))


@pytest.mark.parametrize(("start", "steps", "first"), [(0.0, 6, 0), (0.1, 30, 3), (0.3, 10, 3), (0.5, 7, 4)])
def test_start_fraction_is_of_all_steps(start: float, steps: int, first: int) -> None:
    layer = MTPHeads(start_fraction=start, loss_weight=2.0).build(LayerContext(4, 1, 8), 5)
    weights = [layer.loss_weight_at(step / steps) for step in range(steps)]
    assert weights == [0.0] * first + [2.0] * (steps - first)


def fail(*_: Any) -> None:
    raise AssertionError("only training may call the heads")


@pytest.mark.parametrize("words", [[], ["tie_embeddings=true", "optimizer=muon"]], ids=["untied", "tied"])
def test_heads_have_no_effect_outside_training(words: list[str], tiny: Tiny) -> None:
    some, plain = (Run(tiny(*PLAIN, *words, *more)) for more in (HEADS, []))
    own = {name for name, _ in some.model.named_parameters() if name.startswith("ahead.")}
    assert own == {f"ahead.heads.{number}.weight" for number in range(TOKENS)}
    state, expected = some.model.state_dict(), plain.model.state_dict()
    assert state.keys() - expected.keys() == own
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert len({state[name].numpy().tobytes() for name in (*own, "embed.weight")}) == TOKENS + 1
    handle = some.model.ahead.register_forward_pre_hook(fail)
    inputs = torch.arange(12)[None] % 7
    assert torch.equal(some.model(inputs), plain.model(inputs))
    assert mean_loss(some.model, some.examples.eval_batches()) == mean_loss(plain.model, plain.examples.eval_batches())
    assert some.loss(some.batch()).item() == plain.loss(plain.batch()).item()
    texts = [
        partwise.generate(run.model, run.dataset.tokenizer, ["$(1"], max_new_tokens=12, temperature=0.8, seed=3)
        for run in (some, plain)
    ]
    assert texts[0] == texts[1]
    with pytest.raises(AssertionError, match="only training"):
        some.update()
    handle.remove()
    assert some.update().loss == plain.update().loss  # before the step, both are equal


def test_cpp_decoder_supports_mtp_models(shared_cache: Path) -> None:
    if decoding_weights.library() is None:
        pytest.skip("no C++ compiler here")
    model = partwise.Transformer(partwise.preset("mingpt", "mtp=heads", "d_model=32", "n_layers=2")).eval()
    assert unsupported_reason(model) is None
    decoder, inputs = Decoder(model), torch.arange(20)[None]
    with torch.no_grad():
        logits, cache = model(inputs), decoder.new_cache(1, 20)
        for position in range(20):
            one = decoder(inputs[:, position : position + 1], cache)[:, 0]
            torch.testing.assert_close(one, logits[:, position], rtol=1e-5, atol=1e-5)


def test_heads_learn_later_tokens(tmp_path: Path) -> None:
    """In a periodic text, each letter determines all later ones."""
    text = tmp_path / "cycle.txt"
    text.write_text("gabfhced" * 400)
    small = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.steps=80", "train.lr=1e-2"]
    run = Run(run_config("mingpt", *PLAIN, *HEADS, *small, "train.precision=float32", data=str(text)))
    for _ in run.steps():
        pass
    inputs = torch.from_numpy(run.batch().inputs)
    ahead: list[Tensor] = []
    run.model.eval()(inputs, mtp_logits=ahead)
    assert len(ahead) == TOKENS
    for further, logits in enumerate(ahead, start=2):
        assert torch.equal(logits.argmax(-1)[:, :-further], inputs[:, further:])


def weights_of(run: Run) -> dict[str, Tensor]:
    return {**run.model.state_dict(), **run.optimizer_tensors()}


@pytest.mark.parametrize(
    "words", [[], ["mtp.start_fraction=0.5"], ["mtp.start_fraction=0.5", "optimizer=muon", "tie_embeddings=true"]]
)
def test_resumed_run_equals_uninterrupted_run(words: list[str], tiny: Tiny, tmp_path: Path) -> None:
    uninterrupted = RunFolder(tmp_path / "uninterrupted", tiny(*PLAIN, *HEADS, *words))
    losses = [event.loss for event in uninterrupted.events() if hasattr(event, "grad_norm")]
    for _ in range(6):
        run = RunFolder(tmp_path / "parts", tiny(*PLAIN, *HEADS, *words))
        run.stop_requested = True
        with contextlib.suppress(Interrupted):
            for _ in run.events():
                pass
    resumed = [line["loss"] for line in read_metrics(tmp_path / "parts") if line["kind"] == "step"]
    assert resumed == losses and len(losses) == 6
    state, expected = weights_of(run.run), weights_of(uninterrupted.run)
    assert state.keys() == expected.keys() and any(name.startswith("ahead.heads.2.weight.") for name in state)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    model, _ = partwise.load(tmp_path / "parts")
    loaded = model.state_dict()
    assert loaded.keys() == run.run.model.state_dict().keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in loaded)


def test_bfloat16_loss_is_close_to_float32(tiny: Tiny) -> None:
    float32, bfloat16 = (Run(tiny(*PLAIN, *HEADS, f"train.precision={name}")) for name in ("float32", "bfloat16"))
    exact, rough = (run.training_losses(run.batch()) for run in (float32, bfloat16))
    for one, other in zip((rough.next_token, *rough.mtp), (exact.next_token, *exact.mtp), strict=True):
        assert one.dtype == torch.float32 and one.item() == pytest.approx(other.item(), rel=1e-2)
    assert all(one.item() != other.item() for one, other in zip(rough.mtp, exact.mtp, strict=True))


def test_costs_of_the_heads() -> None:
    plain, some = (partwise.preset("mingpt", *words) for words in ([], ["mtp=heads", "mtp.n_tokens=4"]))
    assert some.parameters() - plain.parameters() == 4 * 96 * 65
    assert some.flops_per_token() - plain.flops_per_token() == 3 * 4 * 2 * 96 * 65
    found, without = ({part.part: part for part in compute_costs(config)} for config in (some, plain))
    assert found.keys() - without.keys() == {"ahead"}
    assert (found["ahead"].parameters, found["ahead"].flops, found["ahead"].cache) == (4 * 96 * 65, 4 * 2 * 96 * 65, 0)
    assert found["total"].flops - without["total"].flops == found["ahead"].flops


def test_heads_are_initialized_and_trained_like_the_head() -> None:
    words = ["mtp=heads", "d_model=256", "attention.n_heads=4", "n_layers=1", "init=mup", "init.base_width=64"]
    model = partwise.Transformer(partwise.preset("mingpt", *words))
    tensors = {tensor.name: tensor for tensor in model.logical_tensors()}
    ahead, head = tensors["ahead.heads.0.weight"], tensors["head.weight"]
    assert ahead.role == head.role == "head" and ahead.lr_factor == head.lr_factor == 0.25
    assert ahead.data.std().item() == pytest.approx(0.02 / 4, rel=0.02) and not torch.equal(ahead.data, head.data)
    groups = Optimizer.resolve("muon").build(model, 1e-3).param_groups
    kinds = {id(parameter): group["kind"] for group in groups for parameter in group["params"]}
    assert kinds[id(ahead.data)] == "adamw"
