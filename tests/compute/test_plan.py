"""Backends refuse what they do not know, and a plan computes the arms of a comparison alike."""

import json
import pickle
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from backends import runtime, use_backends
from kernel_inputs import require_kernels
from partwise.compute.backend_plan import BackendPlan, plan_config, select_backends, shared_plans, slower_arms
from partwise.compute.backends import BACKENDS, Backend, backend
from partwise.compute.backends.decoding import MODEL
from partwise.compute.runtime import Runtime
from partwise.config import REGISTRY, part
from partwise.model import ModelConfig, Transformer
from partwise.model.operations import model_spec, operations
from partwise.parts.attention.core import SDPA
from partwise.parts.attention.multihead import MultiHead, MultiHeadAttention
from partwise.parts.contracts import FeedForward, LayerContext, PositionLayer
from partwise.parts.feed_forward.mlp import Activation, GatedMLP
from partwise.parts.operations import AttentionSpec, BlockSpec, OpaqueSpec, OperationSpec, unsupported_option
from partwise.train.config import run_config
from partwise.train.loop import Run
from partwise.train.run_folder import RunFolder

SHAPE = ("d_model=32", "n_layers=3", "attention.n_heads=4", "context_length=24", "ffn.hidden=64", "vocab_size=20")
DATA = ["data=arithmetic", "data.train=200", "data.validation=10", "data.test=10", "train.device=cpu"]


@pytest.fixture(autouse=True)
def kernels(shared_cache: Path) -> None:
    require_kernels()


def config(*words: str) -> ModelConfig:
    return partwise.preset("mingpt", *SHAPE, *words)


def meta(*words: str) -> Transformer:
    with torch.device("meta"):
        return Transformer(config(*words))


def all_specs() -> dict[type[OperationSpec], OperationSpec]:
    """A spec of every type within a model that every backend supports."""
    found: dict[type[OperationSpec], OperationSpec] = {}

    def collect(spec: Any) -> None:
        if isinstance(spec, tuple):
            for each in spec:
                collect(each)
        if isinstance(spec, OperationSpec) and type(spec) not in found:
            found[type(spec)] = spec
            for field in fields(spec):
                collect(getattr(spec, field.name))

    collect(model_spec(meta()))
    for operation in operations(meta()):
        collect(operation.spec)
    return found


def replace_within(spec: Any, old: type[OperationSpec], new: Any) -> Any:
    """The spec with every spec of type `old` within it replaced."""
    if isinstance(spec, tuple):
        return tuple(replace_within(each, old, new) for each in spec)
    if not isinstance(spec, OperationSpec):
        return spec
    values = {field.name: replace_within(getattr(spec, field.name), old, new) for field in fields(spec)}
    return new(values) if type(spec) is old else replace(spec, **values)


@pytest.mark.parametrize("kind", all_specs(), ids=lambda kind: kind.__name__)
def test_every_backend_refuses_an_option_added_to_any_spec(kind: type[OperationSpec]) -> None:
    """It accepts the option's neutral value: the operation is then the one without the option."""
    extended = make_dataclass(kind.__name__, [("new_option", float, 0.0)], bases=(kind,), frozen=True, kw_only=True)
    specs = {operation.kind: operation.spec for operation in operations(meta("d_model=64"))}
    checked = 0
    for family, spec in specs.items():
        for candidate in BACKENDS[family].values():
            here = Runtime("cuda") if candidate.name == "flex" else runtime()
            if replace_within(spec, kind, lambda values: None) == spec:
                continue  # such a spec does not occur in this operation
            neutral = replace_within(spec, kind, lambda values: extended(**values))
            other = replace_within(spec, kind, lambda values: extended(**values, new_option=2.0))
            assert candidate.unsupported(spec, here) is None
            reason = candidate.unsupported(other, here)
            assert reason is not None and "new_option=2" in reason
            assert candidate.unsupported(neutral, here) is None
            checked += 1
    whole = model_spec(meta())
    assert unsupported_option(replace_within(whole, kind, lambda values: extended(**values)), MODEL) is None
    reason = unsupported_option(replace_within(whole, kind, lambda values: extended(**values, new_option=2.0)), MODEL)
    assert reason is not None and "new_option=2" in reason
    assert checked or kind.__name__ in ("EndsSpec", "ModelSpec")


def test_an_option_added_to_a_part_is_refused_by_all_backends_but_eager() -> None:
    @dataclass(frozen=True, kw_only=True)
    class TiltedSpec(AttentionSpec):
        tilt: float = 0.0

    class TiltedAttention(MultiHeadAttention):
        tilt = 0.0

        def forward(self, x: Tensor, ctx: Any) -> Tensor:
            return super().forward(x, ctx) + self.tilt * x

        def spec(self, core: AttentionSpec) -> OperationSpec:  # type: ignore[override]
            values = {field.name: getattr(core, field.name) for field in fields(core)}
            return super().spec(TiltedSpec(**values, tilt=self.tilt))

    @part("tilted")
    class Tilted(MultiHead):
        tilt: float = 0.0

        def build(self, layer_ctx: LayerContext) -> Any:
            layer = super().build(layer_ctx)
            layer.__class__, layer.tilt = TiltedAttention, self.tilt
            return layer

    words = ["attention={part: tilted, n_heads: 4}", "ffn.hidden=64"]
    plan = plan_config(config(*words), runtime())
    assert plan.counts()["block"] == {"cpp": 3}  # at its neutral value
    plan = plan_config(config(*words, "attention.tilt=0.5"), runtime())
    assert plan.counts()["block"] == {"eager": 3} and "attention.tilt=0.5" in plan.reasons()["block"][0]


OPTIONS: dict[str, dict[str, dict[str, str]]] = {
    "attention": {
        "multihead": {
            "n_heads": "n_heads: 2",
            "n_kv_heads": "n_kv_heads: 2",
            "head_dim": "head_dim: 12",
            "scale": "scale: 0.3",
            "dropout": "dropout: 0.1",
            "window": "window: 5",
            "softcap": "softcap: 20",
            "qk_norm": "qk_norm: head",
            "qk_norm_affine": "qk_norm: head, qk_norm_affine: false",
            "qk_norm_eps": "qk_norm: head, qk_norm_eps: 0.01",
            "gate": "gate: head",
        }
    },
    "norm": {
        "layernorm": {"eps": "eps: 0.01"},
        "rmsnorm": {"eps": "eps: 0.01"},
    },
    "residual": {"pre": {"dropout": "dropout: 0.1"}},
    "short_conv": {"token_shift": {}},
    "ffn": {
        name: {
            "hidden": "hidden: 32",
            "expansion": "expansion: 3",
            "hidden_dropout": "hidden_dropout: 0.1",
            "output_dropout": "output_dropout: 0.1",
            **dict.fromkeys(("beta", "approximate", "alpha"), ""),
        }
        for name, recipe in REGISTRY["ffn"].items()
        if hasattr(recipe, "activation")
    },
}
"""Another value of every option of the parts whose layers have specs, besides booleans and those in OTHER_OPTIONS."""

OTHER_OPTIONS = {
    "beta": "beta: 2",
    "approximate": "approximate: tanh",
    "alpha": "alpha: 2",
}


def specs_of(family: str, name: str, options: str) -> list[Any]:
    shape = [word for word in SHAPE if not word.startswith("ffn.hidden")]
    with torch.device("meta"):
        part = f"{family}={{part: {name}{', ' * bool(options)}{options}}}"
        model = Transformer(partwise.preset("mingpt", *shape, part))
    return [*(operation.spec for operation in operations(model)), model_spec(model)]


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in OPTIONS for name in OPTIONS[family]])
def test_every_option_of_a_part_with_a_spec_is_in_the_spec(family: str, name: str) -> None:
    """An option that is added to such a part fails here until its layer describes it."""
    options = REGISTRY[family][name].model_fields
    switches = {
        key: f"{key}: {str(not field.default).lower()}" for key, field in options.items() if field.annotation is bool
    }
    known = switches | OPTIONS[family][name]
    assert set(options) <= set(known), "add the option to the spec of the layer, and here"
    for option in options:
        changed = known[option] or OTHER_OPTIONS[option]
        base = ", ".join(word for word in changed.split(", ") if not word.startswith(f"{option}:"))
        if name == "elu" and option == "alpha":
            continue  # no kernel computes this activation, with any alpha
        assert specs_of(family, name, base) != specs_of(family, name, changed), option


def test_every_option_of_the_model_is_in_its_spec() -> None:
    elsewhere = {
        *("vocab_size", "d_model", "n_layers", "context_length"),  # sizes of the tensors
        *("positions", "attention", "short_conv", "ffn", "norm", "residual"),  # in the specs of blocks and ends
        *("init", "mtp", "tie_embeddings", "share_encoder_embeddings", "padding_idx"),  # not in a decoder's generation
        "embed_dropout",  # not in generation
    }
    assert set(ModelConfig.model_fields) == elsewhere | {field.name for field in fields(model_spec(meta()))} - {
        "blocks",
        "ends",
    }


def test_a_layer_that_does_not_describe_itself_runs_eagerly() -> None:
    @part("shifted")
    class Shifted(FeedForward):
        def build(self, layer_ctx: LayerContext) -> Any:
            return ShiftedMLP(layer_ctx.d_model, 64, Activation("silu", torch.nn.functional.silu))

    class ShiftedMLP(GatedMLP):  # inherits everything but the description
        def eager(self, x: Tensor) -> Tensor:
            return super().eager(x) + 1

    shape = [word for word in SHAPE if not word.startswith("ffn.hidden")]
    plan = plan_config(partwise.preset("mingpt", *shape, "ffn=[shifted, gelu, shifted]"), runtime())
    assert plan.counts() == {"block": {"eager": 2, "cpp": 1}, "attention": {"cpp": 2}, "ffn": {"eager": 2}}
    assert plan.reasons()["ffn"] == ["cpp: ffn=shifted has no kernel"]
    assert plan.reasons()["block"] == ["cpp: ffn=shifted is not supported"]


def test_positions_that_act_within_blocks_are_opaque_unless_described() -> None:
    class Scaled(PositionLayer):
        def on_heads(self, heads: Tensor, position_ids: Tensor) -> Tensor:
            return 2 * heads

    class Added(PositionLayer):
        def at_input(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return x + 1

    model = meta()
    for layer, opaque in ((Scaled(), True), (Added(), False)):
        model.positions = layer
        spec = next(operations(model)).spec
        assert isinstance(spec, BlockSpec) and isinstance(spec.positions, OpaqueSpec) == opaque


WINDOWS = "attention={cycle: [{part: multihead, n_heads: 4, window: 4}, {part: multihead, n_heads: 4}]}"
PLAIN = "{part: multihead, n_heads: 4}"
DROPPED = f"attention=[{PLAIN}, {{part: multihead, n_heads: 4, dropout: 0.1}}, {PLAIN}]"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("arm", "eager_layers"),
    [("attention.softcap=20", {0, 1, 2}), ("attention.sinks=true", {0, 1, 2}), (DROPPED, {1})],
)
def test_arms_share_the_backend_of_every_layer(arm: str, eager_layers: set[int], precision: str) -> None:
    """Options that force eager attention in one arm, also in a single layer, force it in all arms."""
    plans = shared_plans({"baseline": meta(), "arm": meta(arm)}, runtime(precision))
    assert plans["baseline"].difference(plans["arm"]) is None and slower_arms(plans, runtime(precision)) == {}
    for layer in range(3):
        choice = plans["baseline"].choices[f"blocks.{layer}.attention.scores"]
        assert (choice.backend == "eager") == (layer in eager_layers)
    alone = plan_config(config(), runtime(precision))
    assert alone.counts()["block"] == {"cpp": 3}


def test_arms_with_equal_patterns_keep_their_backends() -> None:
    plans = shared_plans({"baseline": meta(WINDOWS), "arm": meta(WINDOWS, "ffn=swiglu", "ffn.hidden=64")}, runtime())
    assert [plans["arm"].choices[f"blocks.{i}.attention.scores"].backend for i in range(3)] == ["sdpa", "cpp", "sdpa"]
    assert plans["arm"].difference(plan_config(config(WINDOWS), runtime())) is None


def test_additional_layers_use_what_all_layers_of_their_place_support() -> None:
    plans = shared_plans(
        {"short": meta(), "long": meta("n_layers=5"), "capped": meta("attention.softcap=9")}, runtime()
    )
    assert {choice.backend for choice in plans["long"].choices.values() if choice.kind == "attention"} == {"eager"}
    assert {choice.backend for choice in plans["long"].choices.values() if choice.kind == "ffn"} == {"cpp"}
    reasons = plans["long"].reasons()["attention"]
    assert reasons and all("arm capped" in reason for reason in reasons)


def test_in_float32_an_arm_without_a_kernel_is_named_and_in_bfloat16_no_arm_uses_it() -> None:
    models = {"baseline": meta(), "arm": meta("ffn=moe")}
    plans = shared_plans(models, runtime())
    assert plans["baseline"].counts()["block"] == {"cpp": 3}
    assert plans["arm"].counts() == {"block": {"eager": 3}, "attention": {"cpp": 3}, "ffn": {"eager": 3}}
    slower = slower_arms(plans, runtime())
    assert list(slower) == ["arm"] and "block: cpp: ffn=moe is not supported" in slower["arm"]
    plans = shared_plans(models, runtime("bfloat16"))
    for plan in plans.values():
        assert plan.counts() == {"block": {"eager": 3}, "attention": {"cpp": 3}, "ffn": {"eager": 3}}
    assert slower_arms(plans, runtime("bfloat16")) == {}


def test_plans_are_plain_values(tmp_path: Path) -> None:
    plan = plan_config(config(WINDOWS, "ffn=elu"), runtime())
    again = BackendPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan and again.difference(plan) is None
    with pytest.raises(partwise.ConfigError, match=r"chosen for another model \(it differs in blocks.2"):
        plan.apply(Transformer(config("n_layers=2", WINDOWS)))


def test_a_resumed_run_refuses_another_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for word in SHAPE if not word.startswith("vocab")]
    settings = run_config("mingpt", *words, *DATA, "train.precision=float32", "train.steps=2", "train.batch_size=2")
    RunFolder(tmp_path / "run", settings).close()
    RunFolder(tmp_path / "run", settings).close()
    monkeypatch.setattr("partwise.compute.backends.block.kernel.unsupported_width", lambda *_: "not here")
    with pytest.raises(partwise.ConfigError, match=r"blocks.0 was computed by cpp, here by eager.*--fresh") as error:
        RunFolder(tmp_path / "run", settings)
    assert "\n" not in str(error.value)
    RunFolder(tmp_path / "run", settings, fresh=True).close()


def test_select_backends_equals_the_plan_of_a_run() -> None:
    words = [word for word in SHAPE if not word.startswith("vocab")]
    run = Run(run_config("mingpt", *words, *DATA, "train.precision=float32"))
    model = Transformer(run.config.model)
    plan = select_backends(model, n_tokens=run.config.seq_len)
    assert plan.difference(run.plan) is None
    inputs = torch.from_numpy(run.batch().inputs)
    assert torch.equal(model(inputs), run.model(inputs))
    model.reset_backends()
    assert not torch.equal(model(inputs), run.model(inputs))  # another order of sums
    assert torch.allclose(model(inputs), run.model(inputs), atol=1e-4)
    with pytest.raises(partwise.ConfigError, match="supports no layer of this model"):
        select_backends(Transformer(config("ffn=elu")), backends={"ffn": "cpp"})


def test_a_new_backend_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "attention", dict(BACKENDS["attention"]))
    calls: list[int] = []

    class Recorded(SDPA):
        def __call__(self, q: Tensor, *rest: Any) -> Tensor:
            calls.append(q.shape[2])
            return super().__call__(q, *rest)

    @backend
    class Recording(Backend):
        kind, name = "attention", "recording"

        def rank(self, runtime: Any) -> int:
            return 9

        def unsupported(self, spec: OperationSpec, runtime: Any) -> str | None:
            return unsupported_option(spec, dict.fromkeys(("head_dim", "v_head_dim", "scale", "mask"), True))

        def bind(self, module: Any, spec: OperationSpec) -> SDPA:
            return Recorded(module.scale)

    words = [word for word in SHAPE if not word.startswith("vocab")]
    run = Run(run_config("mingpt", *words, *DATA, "train.attention_backend=recording", "train.block_backend=eager"))
    run.update()
    assert len(calls) == 3
    plan = plan_config(config("attention.softcap=9"), runtime())
    assert plan.counts()["attention"] == {"eager": 3}
    assert any("recording: attention.softcap=9" in reason for reason in plan.reasons()["attention"])


@pytest.mark.parametrize("words", [[], ["attention=mla"], ["ffn=moe"], ["ngram_lm=kneser_ney"], ["positions=alibi"]])
def test_a_model_with_backends_can_be_pickled(words: list[str]) -> None:
    """As `torch.save(model)`, multiprocessing and joblib do."""
    model = Transformer(config(*words)).eval()
    use_backends(model, "cpp", "cpp", "cpp")
    model.seed_dropout(0, 0)
    tokens = torch.randint(20, (2, 9))
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), model(tokens))


@pytest.mark.parametrize(
    ("width", "capability", "precision", "wanted", "chosen"),
    [
        (256, "AVX2", "float32", "auto", "cpp"),
        (288, "AVX2", "float32", "auto", "eager"),
        (288, "AVX2", "float32", "cpp", "cpp"),
        (288, "AVX2", "bfloat16", "auto", "cpp"),
        (224, "AVX512", "float32", "auto", "cpp"),
    ],
)
def test_wide_blocks_use_torchs_matmuls_where_these_are_faster(
    monkeypatch: pytest.MonkeyPatch, width: int, capability: str, precision: str, wanted: str, chosen: str
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model = config(f"d_model={width}", "ffn.hidden=64", "attention.n_heads=2", "attention.head_dim=8")
    choices = plan_config(model, replace(runtime(), precision=precision), {"block": wanted}).choices
    assert {choice.backend for choice in choices.values() if choice.kind == "block"} == {chosen}
    if chosen == "eager":
        assert "torch's matmuls are faster at d_model=288 (above 256)" in choices["blocks.0"].reason


def test_an_arm_whose_layers_are_faster_without_the_kernel_lacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide blocks have a kernel, which is not used where torch's matmuls are faster."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    plans = shared_plans({"narrow": meta(), "wide": meta("d_model=288")}, runtime())
    assert plans["narrow"].counts()["block"] == {"cpp": 3} and plans["wide"].counts()["block"] == {"eager": 3}
    assert "cpp: slower here: without AVX-512" in plans["wide"].choices["blocks.0"].reason
    assert slower_arms(plans, runtime()) == {}
