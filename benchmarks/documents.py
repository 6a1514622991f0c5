"""The measurements behind docs/where-documents-err.md: `python benchmarks/documents.py [NAME...]`.

Each function is one doubtful statement of a tutorial, and returns what it measured, by name. They compute with torch alone
where they can, so that a reader can check them line by line; together they take about a minute.
"""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Measured = dict[str, float]

EXAMPLES = (
    "$(0000753.78+0000000910)=87.3661000$",
    "$(0000000782+0000000021)=3080000000$",
    "$(0000002.08-0000136.22)=41.431-000$",
    "$(0000313.46*0000000217)=28.0208600$",
    "$(0000000573*0000351.77)=12.4651020$",
    "$(0000000400/0000000344)=61.1000000$",
    "$(0000000471/0000000299)=85.1000000$",
)
"""The problems that the post shows."""


def symbols() -> Measured:
    """The characters of 10,000 problems in the post's format, and of its seven examples."""
    from partwise.data.arithmetic import ProblemSpec

    spec = ProblemSpec()
    problems = spec.to_ascii(spec.sample(10_000, "documents"))  # as they are written, one after the other
    return {"symbols": len({*problems.tolist()}), "symbols of the examples": len({*"".join(EXAMPLES)})}


def constant_score() -> Measured:
    """Accuracies on 10,000 problems of the most frequent character at each place, and of the most frequent answer."""
    from partwise.baselines.references import constant_char_accuracy, constant_exact_match
    from partwise.data.arithmetic import ProblemSpec

    spec = ProblemSpec()
    samples = [spec.sample(100_000, "documents"), spec.sample(10_000, "documents, test")]
    train, test = (
        spec.to_ascii(each).reshape(-1, spec.max_length)[:, -11:] for each in samples
    )  # the answers and their $
    return {
        "character accuracy of a constant": constant_char_accuracy(train, test),
        "exact match of a constant": constant_exact_match(train, test),
    }


def printed_gate() -> Measured:
    """How the outputs of the post's code and of its formula grow when inputs 10 times as large double: gates multiply."""
    torch.manual_seed(0)
    x, w, v, down = (torch.randn(*shape).double() for shape in ((1000, 96), (96, 256), (96, 256), (256, 96)))

    def code(x: Tensor) -> Tensor:
        return (F.silu(x @ w) * (x @ v)) @ down

    def formula(x: Tensor) -> Tensor:
        return (F.silu(x @ w) * (x @ v) * (x @ v)) @ down

    growth = [(f(20 * x).norm() / f(10 * x).norm()).item() for f in (code, formula)]
    return {"growth of the code": growth[0], "growth of the formula": growth[1]}


def relu_draws() -> Measured:
    """The mean of ReLU after LayerNorm over 100,000 draws of the post's 3 x 3 tensor, and in rows of 768."""
    torch.manual_seed(0)
    draws = nn.LayerNorm(3)(torch.randn(100_000, 3, 3)).detach()
    means, variances = F.relu(draws).mean((1, 2)), draws.flatten(1).var(1)
    wide = F.relu(nn.LayerNorm(768)(torch.randn(2000, 768))).detach()
    return {
        "mean": means.mean().item(),
        "SD of a draw": means.std().item(),
        "variance before, with n - 1": variances.median().item(),
        "mean in rows of 768": wide.mean().item(),
        "variance in rows of 768": wide.var().item(),
    }


def dead_units() -> Measured:
    """Zeros and dead units of the post's layer, which has no bias, over 2048 inputs; and with a bias of -4 SDs."""
    torch.manual_seed(0)
    x = nn.LayerNorm(96)(torch.randn(2048, 96)).detach()
    pre = nn.Linear(96, 384, bias=False)(x).detach()
    shifted = pre - 4 * pre.std()
    return {
        "zeros": (pre <= 0).double().mean().item(),
        "dead": (pre <= 0).all(0).double().mean().item(),
        "dead with a bias": (shifted <= 0).all(0).double().mean().item(),
    }


def hidden_width() -> Measured:
    """Two thirds of 4 x 512, the width 1376 beside it, and the parameters of its three matrices against two of 2048."""
    return {"2/3 * 4 * 512": 8 / 3 * 512, "1376 / 32": 1376 / 32, "parameters": 3 * 1376 / (2 * 2048)}


def tied_start() -> Measured:
    """The first loss where unit-normal embeddings are also the head, and where their SD is 0.02; ln 32,000 for scale.

    The head sees the normalized embedding of the last token, as if the layers added nothing.
    """
    torch.manual_seed(0)
    table, ids = torch.randn(32_000, 512), torch.randint(32_000, (2, 64))

    def loss(std: float) -> float:
        x = std * table[ids[0]]
        normed = x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()
        return F.cross_entropy(normed @ (std * table).T, ids[1]).item()

    return {"SD 1": loss(1.0), "SD 0.02": loss(0.02), "uniform": math.log(32_000)}


def dropout_while_sampling() -> Measured:
    """The difference between two calls of a block under `no_grad`, and after `eval()`: only the latter ends dropout."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(64, 4, dropout=0.1, norm_first=True, batch_first=True)
    x = torch.randn(1, 8, 64)
    with torch.no_grad():
        training = (block(x) - block(x)).abs().max().item()
        block.eval()
        return {"no_grad": training, "eval": (block(x) - block(x)).abs().max().item()}


def position_norms() -> Measured:
    """Norms of sinusoidal position vectors by position and by width, and of embeddings with an initial SD of 0.02."""
    norms = {width: sinusoids(length, width).norm(dim=1) for length, width in ((4096, 512), (1, 4096))}
    torch.manual_seed(0)
    embeddings = {width: (0.02 * torch.randn(1000, width)).norm(dim=1).mean().item() for width in (512, 4096)}
    return {
        "position 0, width 512": norms[512][0].item(),
        "position 4095, width 512": norms[512][-1].item(),
        "width 4096": norms[4096][0].item(),
        "embedding, width 512": embeddings[512],
        "embedding, width 4096": embeddings[4096],
        "embedding times sqrt(512)": embeddings[512] * 512**0.5,
    }


def sinusoids(length: int, width: int) -> Tensor:
    """Position vectors (length, width), as the toy project writes them."""
    table, places = torch.zeros(length, width).double(), torch.arange(length).double()[:, None]
    rates = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000.0) / width))
    table[:, 0::2], table[:, 1::2] = torch.sin(places * rates), torch.cos(places * rates)
    return table


def without_residual() -> Measured:
    """Twelve layers without residual connections: gradient at the input over that at the output, and tokens' cosine.

    The layers read their input normalized, or as it is.
    """
    found = {}
    for name, normalize in (("normalized", True), ("as it is", False)):
        torch.manual_seed(0)
        x = torch.randn(16, 32, 64).double().requires_grad_()
        hidden = x
        for _ in range(12):
            heads = nn.MultiheadAttention(64, 4, batch_first=True).double()
            mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).double()
            for branch in (lambda y, heads=heads: heads(y, y, y, need_weights=False)[0], mlp):
                hidden = branch(F.layer_norm(hidden, (64,)) if normalize else hidden)
        direction = torch.randn_like(hidden)
        (gradient,) = torch.autograd.grad((hidden * direction).sum(), x)
        units = F.normalize(hidden.detach(), dim=-1)
        found[f"{name}: gradient"] = (gradient.norm() / direction.norm()).item()
        found[f"{name}: cosine"] = (units @ units.transpose(1, 2)).mean().item()
    return found


def odd_width() -> Measured:
    """1 if the sinusoidal positions refuse an odd width."""
    try:
        sinusoids(8, 5)
    except RuntimeError:
        return {"refuses width 5": 1.0}
    return {"refuses width 5": 0.0}


def order() -> Measured:
    """How far the last output moves when earlier tokens trade places, without positions: full and causal attention."""
    torch.manual_seed(0)
    x = torch.randn(1, 16, 32).double()
    swapped = torch.cat([x[:, torch.randperm(15)], x[:, 15:]], dim=1)
    layers = [nn.TransformerEncoderLayer(32, 4, dropout=0.0, batch_first=True).double() for _ in range(2)]

    def moved(n_layers: int, causal: bool) -> float:
        mask = torch.full((16, 16), -math.inf).double().triu(1) if causal else None
        ends = []
        for inputs in (x, swapped):
            hidden = inputs
            for layer in layers[:n_layers]:
                hidden = layer(hidden, src_mask=mask)
            ends.append(hidden[:, -1].detach())
        return (ends[0] - ends[1]).abs().max().item()

    return {"full, 2 layers": moved(2, False), "causal, 1 layer": moved(1, True), "causal, 2 layers": moved(2, True)}


def padding_row() -> Measured:
    """SD of row 0 of GPT-2's embeddings in `transformers`; 1 if it has no padding index; parameters of a LayerNorm."""
    model = tiny_gpt2()
    embeddings, norm = model.get_input_embeddings(), model.transformer.ln_f
    return {
        "SD of row 0": embeddings.weight[0].std().item(),
        "no padding index": float(embeddings.padding_idx is None),
        "parameters of a LayerNorm / width": sum(each.numel() for each in norm.parameters()) / 256,
    }


def rescaled_projections() -> Measured:
    """Initial SDs in GPT-2 of `transformers`, 8 layers: of the matrices named c_proj, and of another."""
    block = tiny_gpt2().transformer.h[0]
    return {
        "attention c_proj": block.attn.c_proj.weight.std().item(),
        "feed-forward c_proj": block.mlp.c_proj.weight.std().item(),
        "feed-forward c_fc": block.mlp.c_fc.weight.std().item(),
        "0.02 / sqrt(2 * 8)": 0.02 / math.sqrt(16),
    }


def tiny_gpt2() -> Any:
    """GPT-2 of `transformers`: 8 layers of width 256, weights drawn by its own rules."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=256, n_layer=8, n_head=4, bos_token_id=0, eos_token_id=0))


def gelu_error() -> Measured:
    """The largest difference between GELU and its approximation by a tanh."""
    x = torch.linspace(-10, 10, 1_000_001).double()
    return {"largest error": (F.gelu(x) - F.gelu(x, approximate="tanh")).abs().max().item()}


def feed_forward_shape() -> Measured:
    """Rows and columns of the first feed-forward matrix of `torch.nn.Transformer`, and the width of one head."""
    layer = nn.TransformerEncoderLayer(512, inspect.signature(nn.Transformer).parameters["nhead"].default)
    rows, columns = layer.linear1.weight.shape
    return {"rows": rows, "columns": columns, "d_k": layer.self_attn.head_dim}


def longer(
    kinds: Sequence[str] = ("rope", "sinusoidal", "alibi"), steps: int = 300, width: int = 64, length: int = 64
) -> Measured:
    """Loss on the same characters with the trained context and with four times as much, of small models."""
    import partwise
    from partwise.data.corpora import Shakespeare

    text = Shakespeare().splits()
    letters = {letter: index for index, letter in enumerate(sorted({*text["train"]}))}
    ids, held_out = (
        torch.tensor([letters[letter] for letter in part])
        for part in (str(text["train"]), str(text["val"])[: 400 * length])
    )
    starts = torch.arange(4 * length, len(held_out) - length, length)  # each has a whole context before it
    found = {}
    for positions in kinds:
        words = f"d_model={width} n_layers=2 attention.n_heads=4 context_length={4 * length} positions={positions}"
        model = partwise.Transformer(partwise.preset("mingpt", *words.split(), vocab_size=len(letters)), seed=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            first = torch.randint(len(ids) - length - 1, (16, 1), generator=generator)
            windows = ids[first + torch.arange(length + 1)]
            loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for factor in (1, 4):
            found[f"{positions}, {factor} x {length}"] = last_losses(model, held_out, starts, factor * length)
    return found


@torch.no_grad()
def last_losses(model: nn.Module, ids: Tensor, starts: Tensor, context: int, n_last: int = 16) -> float:
    """Mean loss of the `n_last` characters from each start, read with the `context` characters that end with them."""
    windows = ids[starts[:, None] + torch.arange(n_last - context - 1, n_last)]
    logits = torch.cat([model(part[:, :-1])[:, -n_last:] for part in windows.split(32)])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, -n_last:].flatten()).item()


CHECKS: dict[str, Callable[[], Measured]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        *(symbols, printed_gate, constant_score, relu_draws, dead_units),
        *(hidden_width, tied_start, dropout_while_sampling),
        *(position_norms, feed_forward_shape, gelu_error, padding_row, rescaled_projections),
        *(order, odd_width, without_residual, longer),
    )
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.exit(f"{unknown[0]} is none of {', '.join(CHECKS)}")
    for name in names or CHECKS:
        print(f"{name}: {(CHECKS[name].__doc__ or '').strip().splitlines()[0]}")
        for key, value in CHECKS[name]().items():
            print(f"  {key:36} {value:.6g}")


if __name__ == "__main__":
    main(sys.argv[1:])
