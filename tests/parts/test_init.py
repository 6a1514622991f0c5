"""Initialization and parametrizations."""

import math

import pytest
import torch

import partwise
from partwise.config import REGISTRY
from partwise.parts.roles import TensorSpec
from partwise.train.config import run_config
from partwise.train.loop import Run


def initialized(name: str, role: str, shape: tuple[int, ...], width: int = 64, **options: object) -> torch.Tensor:
    values = torch.full(shape, math.nan)
    spec = TensorSpec(role, shape[-1], shape[-2], width, (3, 0))  # type: ignore[arg-type]
    REGISTRY["init"][name].from_dict(options).fill(values, spec, torch.Generator().manual_seed(0))
    return values


@pytest.mark.parametrize("shape", [(48, 20), (20, 48), (30, 30), (3, 24, 10)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    for matrix in initialized("orthogonal", "hidden", shape, gain=1.5).view(-1, *shape[-2:]).double():
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        assert torch.allclose(small, 2.25 * torch.eye(len(small), dtype=torch.float64), atol=1e-5)
    assert not initialized("orthogonal", "bias", (4, 4)).any()
    assert initialized("orthogonal", "table", (400, 50)).std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("role", ["score", "hidden", "output", "head"])
def test_xavier_is_uniform_within_its_bound(role: str) -> None:
    bound = math.sqrt(6 / (50 + 400))
    values = initialized("xavier", role, (400, 50))
    assert 0.999 * bound < values.abs().max() <= bound
    assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("name", sorted(REGISTRY["init"]))
def test_zero_output_zeros_only_output_matrices(name: str) -> None:
    assert not initialized(name, "output", (8, 8), zero_output=True).any()
    assert initialized(name, "output", (8, 8)).all()
    for role in ("hidden", "score", "head", "table"):
        assert torch.equal(initialized(name, role, (8, 8), zero_output=True), initialized(name, role, (8, 8)))


def test_zero_output_makes_the_blocks_the_identity() -> None:
    config = partwise.preset("llama3", "init.zero_output=true", vocab_size=31)
    model, tokens = partwise.Transformer(config).eval(), torch.arange(12)[None]
    x = model.embed(tokens)
    assert torch.equal(model(tokens), model.head(model.residual.leave(x)))


@pytest.mark.parametrize("role", ["table", "score", "hidden", "output", "head"])
def test_mup_std_and_learning_rates(role: str) -> None:
    """Table 3 of the paper: variances 1, 1/n, 1/n^2 and rates 1, 1/n, 1/n at width n, for embeddings, matrices and head."""
    power = {"table": 0.0, "head": 1.0}.get(role, 0.5)
    for ratio in (1, 4):
        values = initialized("mup", role, (400, 50), width=64 * ratio, base_width=64, std=0.03)
        assert values.std().item() == pytest.approx(0.03 / ratio**power, rel=0.02)
        recipe = REGISTRY["init"]["mup"].from_dict({"base_width": 64})
        spec = TensorSpec(role, 50, 400, 64 * ratio)  # type: ignore[arg-type]
        assert recipe.lr_factor(spec) == (1.0 if role == "table" else 1 / ratio)


def test_mup_scores_follow_the_head_width() -> None:
    recipe = REGISTRY["init"]["mup"].from_dict({"base_width": 64})
    assert recipe.score_scale(16, 64) == pytest.approx(1 / 4)  # at the base width, the default 1 / sqrt(E)
    assert recipe.score_scale(64, 256) == pytest.approx(4 / 64)  # a constant number of heads: proportional to 1 / E
    fixed = REGISTRY["init"]["mup"].from_dict({"base_width": 64, "base_head_dim": 16})
    assert fixed.score_scale(16, 256) == pytest.approx(1 / 4)  # a constant head dimension and more heads


def test_mup_rejects_tied_embeddings_and_muon() -> None:
    with pytest.raises(
        partwise.ConfigError, match="init=mup scales embeddings and head differently: set tie_embeddings=false"
    ):
        partwise.preset("llama3", "init=mup")
    with pytest.raises(partwise.ConfigError, match="not optimizer=muon"):
        run_config("mingpt", "init=mup", "optimizer=muon", data="arithmetic")


def logit_changes_by_width(init: str, widths: tuple[int, ...]) -> list[float]:
    """The mean change of the logits after four steps, by width: the paper's coordinate check."""
    found = []
    for width in widths:
        words = f"d_model={width} n_layers=2 attention.n_heads=4 context_length=32 init={init} train.lr=0.001"
        more = "train.batch_size=8 train.steps=4 train.precision=float32 train.device=cpu"
        data = "data.train=2000 data.validation=20 data.test=20"
        run = Run(run_config("mingpt", *words.split(), *more.split(), *data.split(), data="arithmetic"))
        inputs = torch.from_numpy(run.batch().inputs)
        before = run.model.eval()(inputs).detach()
        for _ in run.steps():
            pass
        found.append((run.model.eval()(inputs).detach() - before).abs().mean().item())
    return found


def test_coordinate_check_distinguishes_mup_from_normal_init() -> None:
    """The change of the logits in four steps is constant from width 64 to 512 under muP, and grows with init=normal."""
    widths = (64, 128, 256, 512)
    flat, growing = logit_changes_by_width("mup", widths), logit_changes_by_width("normal", widths)
    assert max(flat) / min(flat) < 1.25, flat
    assert growing[-1] / growing[0] > 2.5, growing
