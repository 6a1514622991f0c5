"""Tokens beyond the next one: their loss against a loop over places, and that nothing but training sees them."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from partwise.data import IGNORED, Batch
from partwise.evaluate.loss import mean_loss
from partwise.inspection.cost import costs
from partwise.kernels import packing
from partwise.kernels.decoding import Decoder, refusal
from partwise.parts.ahead import FurtherHeads
from partwise.parts.families import Site
from partwise.train.cross_entropy import later
from partwise.train.folder import Interrupted, RunFolder
from partwise.train.loop import Run
from partwise.train.metrics import read_metrics
from partwise.train.optimizers import Optimizer
from partwise.train.settings import RunConfig, run_config

Tiny = Callable[..., RunConfig]
TOKENS, WEIGHT = 3, 0.7
HEADS = ["ahead=heads", f"ahead.tokens={TOKENS}", f"ahead.weight={WEIGHT}"]
PLAIN = ["train.attention_path=products", "train.ffn_path=torch", "train.block_path=layers", "train.threads=1"]
DATA = {
    "windows of text": [],
    "answers within windows": ["data.loss_on=answer"],
    "answers of aligned problems": ["data.aligned=true", "data.loss_on=answer", "data.padding=0", "max_len=40"],
    "pairs": ["encoder_layers=1", "n_layers=1", "data=arithmetic_pairs", "max_len=32"],
    "smoothed": ["train.label_smoothing=0.2", "head_softcap=2.0", "tied=true", "head_bias=true"],
    "windows of two tokens": ["train.context=2"],
}


def double(config: RunConfig) -> Run:
    run = Run(config)
    run.model.double()
    run.optimizer = config.optimizer.build(run.model, config.train.lr)
    return run


def by_places(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of the next tokens and that of those beyond, per target, one place after the other."""
    seen: list[Tensor] = []
    handle = run.model.head.register_forward_pre_hook(lambda head, inputs: seen.append(inputs[0]))
    source = None if batch.source is None else torch.from_numpy(batch.source)
    logits = run.model(torch.from_numpy(batch.inputs), source=source)
    handle.remove()
    weights = [run.model.get_parameter(f"ahead.heads.{number}.weight") for number in range(TOKENS)]
    smoothing, targets = run.config.train.label_smoothing, batch.targets.tolist()

    def surprise(scores: Tensor, target: int) -> Tensor:
        log_p = scores.log_softmax(-1)
        return -(1 - smoothing) * log_p[target] - smoothing * log_p.mean()

    following, beyond, count = torch.zeros(()), torch.zeros(()), 0
    for row, wanted in enumerate(targets):
        for place, target in enumerate(wanted):
            if target == IGNORED:
                continue
            count += 1
            following = following + surprise(logits[row, place], target)
            for further, weight in enumerate(weights, start=1):
                if place + further < len(wanted) and wanted[place + further] != IGNORED:
                    beyond = beyond + WEIGHT * surprise(weight @ seen[0][row, place], wanted[place + further])
    return following / count, beyond / count


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("words", DATA.values(), ids=DATA)
def test_an_update_learns_what_a_loop_over_places_says(words: list[str], accumulate: int, tiny: Tiny) -> None:
    run = double(tiny(*PLAIN, *HEADS, *words, f"train.accumulate={accumulate}"))
    following, beyond = by_places(run, run.batch())
    (following + beyond).backward()
    expected = {name: parameter.grad for name, parameter in run.model.named_parameters()}
    run.optimizer.zero_grad(set_to_none=True)
    found: dict[str, Tensor | None] = {}
    run.optimizer.step = lambda: found.update(  # type: ignore[method-assign, misc]
        {name: parameter.grad for name, parameter in run.model.named_parameters()}
    )
    step = run.update()
    assert step.loss == pytest.approx(following.item(), rel=1e-12)  # what is reported is the next tokens' alone
    assert beyond.item() > 0.1
    largest = max(gradient.abs().max() for gradient in expected.values() if gradient is not None)
    for name, gradient in expected.items():
        one = found[name]
        if gradient is None:  # heads that look beyond every row
            assert one is None or not one.any()
        else:
            assert one is not None and (one - gradient).abs().max() <= 1e-12 * largest, name
    reached = [name for name in expected if name.startswith("ahead.") and expected[name] is not None]
    assert len(reached) == (1 if "train.context=2" in words else TOKENS)


def test_later_targets_stay_within_their_row() -> None:
    targets = torch.tensor([[1, 2, IGNORED, 4, 5], [6, 7, 8, IGNORED, 9]])
    no = IGNORED
    assert later(targets, 1).tolist() == [[2, no, no, 5, no], [7, 8, no, no, no]]
    assert later(targets, 2).tolist() == [[no, 4, no, no, no], [8, no, 9, no, no]]
    for places in (5, 6, 10):
        assert (later(targets, places) == IGNORED).all()


def test_before_their_start_nothing_is_computed_and_nothing_moves(tiny: Tiny) -> None:
    run, plain = (
        Run(tiny(*PLAIN, "optimizer.weight_decay=0.1", *words)) for words in ([*HEADS, "ahead.start=0.5"], [])
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
def test_the_share_is_of_all_steps(start: float, steps: int, first: int) -> None:
    layer = FurtherHeads(start=start, weight=2.0).build(Site(4, 1, 8), 5)
    weights = [layer.weight_at(step / steps) for step in range(steps)]
    assert weights == [0.0] * first + [2.0] * (steps - first)


def refuse(*_: Any) -> None:
    raise AssertionError("only training may ask for this")


@pytest.mark.parametrize("words", [[], ["tied=true", "optimizer=muon"]], ids=["untied", "tied"])
def test_nothing_but_training_sees_them(words: list[str], tiny: Tiny) -> None:
    some, plain = (Run(tiny(*PLAIN, *words, *more)) for more in (HEADS, []))
    own = {name for name, _ in some.model.named_parameters() if name.startswith("ahead.")}
    assert own == {f"ahead.heads.{number}.weight" for number in range(TOKENS)}
    state, expected = some.model.state_dict(), plain.model.state_dict()
    assert state.keys() - expected.keys() == own
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert len({state[name].numpy().tobytes() for name in (*own, "embed.weight")}) == TOKENS + 1
    handle = some.model.ahead.register_forward_pre_hook(refuse)
    inputs = torch.arange(12)[None] % 7
    assert torch.equal(some.model(inputs), plain.model(inputs))
    assert mean_loss(some.model, some.examples.scored()) == mean_loss(plain.model, plain.examples.scored())
    assert some.loss(some.batch()).item() == plain.loss(plain.batch()).item()
    texts = [
        partwise.generate(run.model, run.dataset.tokenizer, ["$(1"], length=12, temperature=0.8, seed=3)
        for run in (some, plain)
    ]
    assert texts[0] == texts[1]
    with pytest.raises(AssertionError, match="only training"):
        some.update()
    handle.remove()
    assert some.update().loss == plain.update().loss  # before the update both are the same


def test_the_compiled_decoder_serves_such_a_model(shared_cache: Path) -> None:
    if packing.library() is None:
        pytest.skip("no C++ compiler here")
    model = partwise.Transformer(partwise.preset("mingpt", "ahead=heads", "d_model=32", "n_layers=2")).eval()
    assert refusal(model) is None
    decoder, inputs = Decoder(model), torch.arange(20)[None]
    with torch.no_grad():
        logits, states = model(inputs), decoder.start(1, 20)
        for place in range(20):
            one = decoder(inputs[:, place : place + 1], states)[:, 0]
            torch.testing.assert_close(one, logits[:, place], rtol=1e-5, atol=1e-5)


def test_heads_learn_the_tokens_that_come_later(tmp_path: Path) -> None:
    """Of a text in which each letter tells all that follow."""
    text = tmp_path / "cycle.txt"
    text.write_text("gabfhced" * 400)
    small = ["d_model=16", "n_layers=1", "attention.n_heads=2", "max_len=16", "train.steps=80", "train.lr=1e-2"]
    run = Run(run_config("mingpt", *PLAIN, *HEADS, *small, "train.precision=float32", data=str(text)))
    for _ in run.steps():
        pass
    inputs = torch.from_numpy(run.batch().inputs)
    ahead: list[Tensor] = []
    run.model.eval()(inputs, ahead=ahead)
    assert len(ahead) == TOKENS
    for further, logits in enumerate(ahead, start=2):
        assert torch.equal(logits.argmax(-1)[:, :-further], inputs[:, further:])


def weights_of(run: Run) -> dict[str, Tensor]:
    return {**run.model.state_dict(), **run.optimizer_tensors()}


@pytest.mark.parametrize("words", [[], ["ahead.start=0.5"], ["ahead.start=0.5", "optimizer=muon", "tied=true"]])
def test_stopped_anywhere_and_resumed_it_is_the_run_that_was_not(words: list[str], tiny: Tiny, tmp_path: Path) -> None:
    whole = RunFolder(tmp_path / "whole", tiny(*PLAIN, *HEADS, *words))
    losses = [event.loss for event in whole.events() if hasattr(event, "grad_norm")]
    for _ in range(6):
        run = RunFolder(tmp_path / "parts", tiny(*PLAIN, *HEADS, *words))
        run.stopping = True
        with contextlib.suppress(Interrupted):
            for _ in run.events():
                pass
    resumed = [line["loss"] for line in read_metrics(tmp_path / "parts") if line["kind"] == "step"]
    assert resumed == losses and len(losses) == 6
    state, expected = weights_of(run.run), weights_of(whole.run)
    assert state.keys() == expected.keys() and any(name.startswith("ahead.heads.2.weight.") for name in state)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    model, _ = partwise.load(tmp_path / "parts")
    loaded = model.state_dict()
    assert loaded.keys() == run.run.model.state_dict().keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in loaded)


def test_in_bfloat16_it_is_the_same_loss_coarsely(tiny: Tiny) -> None:
    fine, coarse = (Run(tiny(*PLAIN, *HEADS, f"train.precision={name}")) for name in ("float32", "bfloat16"))
    exact, rough = (run.losses(run.batch()) for run in (fine, coarse))
    for one, other in zip((rough.main, *rough.ahead), (exact.main, *exact.ahead), strict=True):
        assert one.dtype == torch.float32 and one.item() == pytest.approx(other.item(), rel=1e-2)
    assert all(one.item() != other.item() for one, other in zip(rough.ahead, exact.ahead, strict=True))


def test_they_cost_what_they_do() -> None:
    plain, some = (partwise.preset("mingpt", *words) for words in ([], ["ahead=heads", "ahead.tokens=4"]))
    assert some.parameters() - plain.parameters() == 4 * 96 * 65
    assert some.flops_per_token() - plain.flops_per_token() == 3 * 4 * 2 * 96 * 65
    found, without = ({part.part: part for part in costs(config)} for config in (some, plain))
    assert found.keys() - without.keys() == {"ahead"}
    assert (found["ahead"].parameters, found["ahead"].flops, found["ahead"].cache) == (4 * 96 * 65, 4 * 2 * 96 * 65, 0)
    assert found["whole"].flops - without["whole"].flops == found["ahead"].flops


def test_they_are_drawn_and_learn_as_heads() -> None:
    words = ["ahead=heads", "d_model=256", "attention.n_heads=4", "n_layers=1", "init=mup", "init.base_width=64"]
    model = partwise.Transformer(partwise.preset("mingpt", *words))
    tensors = {tensor.name: tensor for tensor in model.logical_tensors()}
    ahead, head = tensors["ahead.heads.0.weight"], tensors["head.weight"]
    assert ahead.role == head.role == "head" and ahead.lr_factor == head.lr_factor == 0.25
    assert ahead.data.std().item() == pytest.approx(0.02 / 4, rel=0.02) and not torch.equal(ahead.data, head.data)
    groups = Optimizer.resolve("muon").build(model, 1e-3).param_groups
    kinds = {id(parameter): group["kind"] for group in groups for parameter in group["params"]}
    assert kinds[id(ahead.data)] == "adamw"
