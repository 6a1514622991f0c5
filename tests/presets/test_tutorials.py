"""Tutorial presets equal plain reference implementations, in logits and all gradients, in float64."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partwise
from backends import use_backends
from from_scratch.positions import sinusoidal
from references import Shapes, Tensors
from references.llama import llama_logits, llama_parameters, llama_shapes
from references.mingpt import mingpt_logits, mingpt_parameters, mingpt_shapes
from references.toy import toy_logits, toy_parameters, toy_shapes
from references.tutorial_loop import SYMBOLS, encode, estimate_loss, score_arithmetic

EXACT = 1e-12


@dataclass(frozen=True)
class Case:
    words: str
    vocab: int
    length: int
    shapes: Shapes
    logits: Callable[[Tensors, Tensor], Tensor]


SMALL = "d_model=64 n_layers=2 attention.n_heads=4 ffn.hidden=172 context_length=80"
SIZES: dict[str, Any] = {"n_layers": 2, "n_heads": 4}


def small_llama(n_kv_heads: int | None) -> Case:
    words = f"llama {SMALL}" + (f" attention.n_kv_heads={n_kv_heads}" if n_kv_heads else "")
    shapes = llama_shapes(97, width=64, hidden=172, n_kv_heads=n_kv_heads, **SIZES)
    return Case(words, 97, 80, shapes, partial(llama_logits, n_kv_heads=n_kv_heads, **SIZES))


def small_toy(swaps: str) -> Case:
    rope, gated = "positions=rope" in swaps, "ffn=swiglu" in swaps
    shapes = toy_shapes(65, n_layers=2, width=64, hidden=172, gated=gated)
    return Case(f"toy {swaps} {SMALL}", 65, 80, shapes, partial(toy_logits, rope=rope, gated=gated, **SIZES))


CASES = [
    Case("mingpt", 65, 128, mingpt_shapes(65), mingpt_logits),
    Case("mingpt ffn=swiglu", 65, 128, mingpt_shapes(65, gated=True), partial(mingpt_logits, ffn="swiglu")),
    *(small_llama(n_kv_heads) for n_kv_heads in (None, 2, 1)),
    *(small_toy(swaps) for swaps in ("", "positions=rope", "ffn=swiglu", "positions=rope ffn=swiglu")),
    Case("mingpt attention.fused_qkv=false", 65, 128, mingpt_shapes(65), mingpt_logits),
    small_toy("attention.fused_qkv=true"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
each_backend = pytest.mark.parametrize("backend", ["eager", "sdpa"])


def build(words: str, vocab: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> partwise.Transformer:
    """A model in eval mode with random parameters, including norm scales and all biases."""
    name, *overrides = words.split()
    model = partwise.Transformer(partwise.preset(name, *overrides, vocab_size=vocab)).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() == 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            else:
                parameter.copy_(0.3 * noise + float(parameter_name.endswith("weight")))
    return model


def draw_tokens(vocab: int, length: int, batch: int = 2) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def leaves(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in model.state_dict().items()}


def logical_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by the names in the state dict, obtained by replacing each parameter with its gradient."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} got no gradient"
        parameter.data = parameter.grad
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_close(actual: Tensor, expected: Tensor, relative: float, scale: float | None = None, what: str = "") -> None:
    scale = expected.abs().max().item() if scale is None else scale
    error = (actual - expected).abs().max().item()
    assert actual.shape == expected.shape
    assert error <= relative * scale, f"{what}: off by {error:.3g}, {error / scale:.3g} of the largest value"


@each_case
def test_tensors_have_the_names_and_shapes_of_the_reference(case: Case) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in build(case.words, case.vocab).state_dict().items()}
    assert shapes == case.shapes


@each_backend
@each_case
def test_logits_equal_the_reference(case: Case, backend: str) -> None:
    model, tokens = build(case.words, case.vocab), draw_tokens(case.vocab, case.length)
    use_backends(model, backend)
    with torch.no_grad():
        for length in (1, 2, case.length):
            expected = case.logits(leaves(model), tokens[:, :length])
            assert_close(model(tokens[:, :length]), expected, EXACT)


@each_backend
@each_case
def test_every_gradient_equals_the_reference(case: Case, backend: str) -> None:
    model, tokens = build(case.words, case.vocab), draw_tokens(case.vocab, case.length)
    use_backends(model, backend)
    tensors = leaves(model)
    expected = case.logits(tensors, tokens)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (expected * weights).sum().backward()
    (model(tokens) * weights).sum().backward()
    gradients = logical_gradients(model)
    assert gradients.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.grad is not None
        # a constant added to every key changes no softmax: without rope this gradient is zero up to rounding
        yardstick = tensors[name.replace(".k.bias", ".q.bias")].grad
        assert yardstick is not None and yardstick.abs().max() > 0, name
        assert_close(gradients[name], tensor.grad, EXACT, yardstick.abs().max().item(), name)


@pytest.mark.parametrize("case", [CASES[0], small_llama(None), small_toy("")], ids=lambda case: case.words)
def test_dropout_is_applied_where_the_tutorials_apply_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output shows where dropout is applied: before or after a linear layer and its bias.

    Dropout is replaced by a multiplication by 1 + p.
    """
    monkeypatch.setattr("partwise.parts.dropout.Dropout.forward", lambda self, x: x * (1 + self.p))
    factors = {
        "mingpt": {},
        "llama": {"attention.out.weight": 1.1, "ffn.down.weight": 1.1},
        "toy": {"attention.out.weight": 1.1, "ffn.down.weight": 1.1 * 1.1, "ffn.down.bias": 1.1},
    }[case.words.split()[0]]
    model, tokens = build(case.words, case.vocab), draw_tokens(case.vocab, case.length)
    with torch.no_grad():
        scaled = {name: t * factors.get(name.split(".", 2)[-1], 1.0) for name, t in model.state_dict().items()}
        assert_close(model(tokens), case.logits(scaled, tokens), EXACT)


def test_tied_head_is_one_tensor() -> None:
    model, tokens = build(f"llama {SMALL}", 97), draw_tokens(96, 4)
    with torch.no_grad():
        before = model(tokens)
        dict(model.named_parameters())["embed.weight"][96] *= 2  # the last symbol, which is not in the input
        after = model(tokens)
    assert torch.equal(after[..., :96], before[..., :96])
    assert_close(after[..., 96], 2 * before[..., 96], EXACT)


def count(words: str, vocab: int) -> int:
    name, *overrides = words.split()
    with torch.device("meta"):
        model = partwise.Transformer(partwise.preset(name, *overrides, vocab_size=vocab))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("vocab", "expected"), [(65, 913_601), (19, 904_723)])
def test_mingpt_has_the_parameter_count_of_the_tutorial(vocab: int, expected: int) -> None:
    assert mingpt_parameters(vocab) == mingpt_parameters(vocab, gated=True) == expected
    assert count("mingpt", vocab) == count("mingpt ffn=swiglu", vocab) == expected


def test_the_presets_page_gives_the_hidden_width_of_the_tutorial() -> None:
    """4 int(2E/3), which is not 8E/3 rounded at every width."""
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    commands = re.findall(r"^partwise show mingpt (ffn=swiglu .*ffn\.hidden=.*)$", page, re.MULTILINE)
    models = [partwise.preset("mingpt", "n_layers=1", *words.split()) for words in commands]
    assert {model.d_model for model in models} == {64, 100, 128}
    for model in models:
        hidden = partwise.Transformer(model).blocks[0].ffn.down.weight.shape[1]
        assert hidden == 4 * int(2 * model.d_model / 3)


def test_llama_has_the_parameter_count_of_the_tutorial() -> None:
    assert count("llama", 32000) == llama_parameters() == 35_363_328
    assert count("llama attention.n_kv_heads=2", 32000) == llama_parameters(n_kv_heads=2)


@pytest.mark.parametrize("gated", [False, True])
def test_toy_has_the_parameter_count_of_its_formula(gated: bool) -> None:
    words = "toy d_model=48 n_layers=3 attention.n_heads=6 " + ("ffn=swiglu " if gated else "") + "ffn.hidden=100"
    assert count(words, 65) == toy_parameters(65, n_layers=3, width=48, hidden=100, gated=gated)


@pytest.mark.parametrize(
    "shapes, parameters",
    [
        (mingpt_shapes(65), mingpt_parameters(65)),
        (mingpt_shapes(19, gated=True), mingpt_parameters(19, gated=True)),
        (llama_shapes(n_kv_heads=2), llama_parameters(n_kv_heads=2)),
        (toy_shapes(65, n_layers=3, width=48, hidden=100), toy_parameters(65, 3, 48, 100)),
        (toy_shapes(65, n_layers=3, width=48, hidden=100, gated=True), toy_parameters(65, 3, 48, 100, gated=True)),
    ],
)
def test_the_shapes_of_references_match_their_parameter_counts(shapes: Shapes, parameters: int) -> None:
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters


def test_swiglu_is_that_of_the_tutorials_code_not_of_its_formula() -> None:
    """The post prints (SwiGLU(xW) * xV) W2 although its SwiGLU already includes the product; its code gates once."""
    words = "mingpt ffn=swiglu d_model=24 n_layers=2 attention.n_heads=4"
    model, tokens = build(words, 19), draw_tokens(19, 32)
    with torch.no_grad():
        logits, tensors = model(tokens), leaves(model)
        assert_close(logits, mingpt_logits(tensors, tokens, ffn="swiglu", **SIZES), EXACT)
        printed = mingpt_logits(tensors, tokens, ffn="swiglu_as_printed", **SIZES)
    assert (logits - printed).abs().max() > 0.1 * logits.abs().max()


def test_the_arithmetic_format_has_19_symbols_not_21() -> None:
    """Ten digits, four operators, the point, two parentheses, '=' and '$'; the tutorial states 21."""
    lines = "$(0000753.78+0000000910)=87.3661000$ $(0000002.08-0000136.22)=41.431-000$ $(0000313.46*0000000217)="
    lines += " $(0000000400/0000000344)=61.1000000$ $(0000000589/0000000001)=0985000000$"
    assert "".join(sorted(set(lines) - {" "})) == SYMBOLS
    assert len(SYMBOLS) == 19 and SYMBOLS[0] == "$"


@pytest.mark.parametrize("words", [f"mingpt {SMALL}", f"toy {SMALL}"])
def test_blocks_equal_torchs_encoder_layer(words: str) -> None:
    """Pre-norm blocks with a causal mask against torch.nn.TransformerEncoderLayer, with absent biases as zeros."""
    model, tokens, toy = build(words, 65), draw_tokens(65, 80), words.startswith("toy")
    tensors = model.state_dict()
    x = tensors["embed.weight"][tokens]
    x = sinusoidal(x) if toy else x + tensors["positions.weight"]
    mask = nn.Transformer.generate_square_subsequent_mask(80, dtype=torch.float64)
    for i in range(2):
        layer = nn.TransformerEncoderLayer(
            64, 4, 172, 0.0, "gelu" if toy else "relu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        own = {name.removeprefix(f"blocks.{i}."): t for name, t in tensors.items() if name.startswith(f"blocks.{i}.")}
        zeros = torch.zeros(172, dtype=torch.float64)
        parts = {
            "self_attn.in_proj_weight": torch.cat([own[f"attention.{role}.weight"] for role in "qkv"]),
            "self_attn.in_proj_bias": torch.cat([own.get(f"attention.{role}.bias", zeros[:64]) for role in "qkv"]),
            "linear1.bias": own.get("ffn.up.bias", zeros),
            "linear2.bias": own.get("ffn.down.bias", zeros[:64]),
        }
        for theirs, ours in (("self_attn.out_proj", "attention.out"), ("linear1", "ffn.up"), ("linear2", "ffn.down")):
            parts |= {f"{theirs}.{k}": own[f"{ours}.{k}"] for k in ("weight", "bias") if f"{ours}.{k}" in own}
        for theirs, ours in (("norm1", "attention"), ("norm2", "ffn")):
            parts |= {f"{theirs}.{k}": own[f"residual.norms.{ours}.{k}"] for k in ("weight", "bias")}
        layer.load_state_dict(parts)
        x = layer(x, src_mask=mask)
    x = nn.functional.layer_norm(x, (64,), tensors["residual.norm.weight"], tensors["residual.norm.bias"])
    expected = nn.functional.linear(x, tensors["head.weight"], tensors["head.bias"])
    assert_close(model(tokens), expected, EXACT)


class ExactRotary(nn.Module):
    """The float64 version of transformers' float32 rotary tables, for head_dim 16."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * 10000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("exact", "relative"), [(True, EXACT), (False, 1e-5)])
def test_llama_equals_transformers(n_kv_heads: int, exact: bool, relative: float) -> None:
    """transformers computes norms and rotary tables in float32; `exact` replaces them with float64 ones."""
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    words = f"llama {SMALL} attention.n_kv_heads={n_kv_heads}"
    model, tokens = build(words, 97), draw_tokens(97, 80)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    other = transformers.LlamaForCausalLM(config).double().eval()
    if exact:
        other.model.rotary_emb = ExactRotary()
        for block in other.model.layers:
            block.input_layernorm = nn.RMSNorm(64, 1e-6, dtype=torch.float64)
            block.post_attention_layernorm = nn.RMSNorm(64, 1e-6, dtype=torch.float64)
        other.model.norm = nn.RMSNorm(64, 1e-6, dtype=torch.float64)
    missing, unexpected = other.load_state_dict(rename_for_transformers(model.state_dict()), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}  # tied
    with torch.no_grad():
        assert_close(model(tokens), other(tokens).logits, relative)


def rename_for_transformers(tensors: Tensors) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        for ours, theirs in (
            ("embed.", "model.embed_tokens."),
            ("blocks.", "model.layers."),
            ("residual.norms.attention", "input_layernorm"),
            ("residual.norms.ffn", "post_attention_layernorm"),
            ("residual.norm.", "model.norm."),
            ("attention.out", "self_attn.o_proj"),
            *((f".attention.{role}.", f".self_attn.{role}_proj.") for role in "qkv"),
            *((f".ffn.{role}.", f".mlp.{role}_proj.") for role in ("gate", "up", "down")),
        ):
            name = name.replace(ours, theirs)
        renamed[name] = tensor
    return renamed


PROBLEMS = ["$(0000000400/0000000344)=61.1000000$", "$(0000000782+0000000021)=3080000000$"]


def fixed_answers(answers: dict[str, str]) -> Callable[[Tensor], Tensor]:
    """Logits that continue each known prompt with its given answer."""

    def logits(tokens: Tensor) -> Tensor:
        text = "".join(SYMBOLS[i] for i in tokens[0])
        prompt, generated = text[: text.index("=") + 1], text[text.index("=") + 1 :]
        scores = torch.full((*tokens.shape, len(SYMBOLS)), -1e9)
        scores[0, -1, SYMBOLS.index(answers[prompt][len(generated)])] = 0.0
        return scores

    return logits


def test_the_tutorials_scores_follow_their_definition() -> None:
    prompts = [problem[: problem.index("=") + 1] for problem in PROBLEMS]
    correct = dict(zip(prompts, ["61.1000000$", "3080000000$"], strict=True))
    scores = score_arithmetic(fixed_answers(correct), PROBLEMS)
    assert (scores.character_accuracy, scores.exact_match) == (1.0, 1.0)
    assert torch.equal(scores.predictions, torch.stack([encode(problem) for problem in PROBLEMS]))
    # stopping early: '6' and '1' are correct, and the last of eleven characters, because the padding is '$' as well
    early = score_arithmetic(fixed_answers(correct | {prompts[0]: "61$"}), PROBLEMS)
    assert (early.character_accuracy, early.exact_match) == ((11 + 3) / 22, 0.5)
    # too long: truncated to eleven characters; only the '$' is wrong
    late = score_arithmetic(fixed_answers(correct | {prompts[0]: "61.10000000$"}), PROBLEMS)
    assert (late.character_accuracy, late.exact_match) == ((11 + 10) / 22, 0.5)


def test_the_tutorials_loss_is_the_mean_cross_entropy() -> None:
    symbols = draw_tokens(19, 500)[0]
    generator = torch.Generator().manual_seed(0)
    model = build("mingpt d_model=24 n_layers=1 attention.n_heads=4 context_length=16", 19, torch.float32)
    uniform = estimate_loss(lambda x: torch.zeros(*x.shape, 19), symbols, batches=3, context=16, generator=generator)
    assert uniform == pytest.approx(math.log(19), rel=1e-6)
    # with a single possible window the estimate is that window's loss
    window = symbols[:17]
    estimate = estimate_loss(model, window, batches=2, context=16, generator=generator)
    expected = nn.functional.cross_entropy(model(window[None, :-1])[0], window[1:]).item()
    assert estimate == pytest.approx(expected, rel=1e-5)
