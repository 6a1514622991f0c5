"""Training steps of other projects, each built as its users would build it, at a given shape.

Every builder takes (options, inputs, targets, setting) and returns a step; `options` has layers, width, heads, context,
vocab and tie_embeddings. Raises ImportError if the peer is not installed.

As a script it runs one peer for `peer_process.py`: the first line of standard input is the task as JSON, each further
line a number of steps to take. It answers each line with JSON: the last step's loss, or an error. This file does not
import partwise, which may not be installed in a peer's environment.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEARNING_RATE = 3e-4
Step = Callable[..., Tensor]
"""`step(count=1)` takes `count` training steps and returns the loss of the last."""


@dataclass(frozen=True)
class Setting:
    """How a peer is run: by default, or with options that its users can enable without changing its code."""

    tuned: bool = False  # torch's fused attention and fused AdamW, if the peer offers the choice
    compiled: bool = False
    bfloat16: bool = False

    def __str__(self) -> str:
        enabled = [name for name, value in asdict(self).items() if value]
        return ", ".join(enabled) or "default"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a peer's own output must not be taken for a reply
    try:
        step = build(**json.loads(sys.stdin.readline()))
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps({"loss": float(step(int(line)))}), file=answers, flush=True)
    except Exception as error:  # the caller reports it and continues without this peer
        print(json.dumps({"error": str(error) or type(error).__name__}), file=answers, flush=True)


def build(
    peer: str,
    options: dict[str, Any],
    inputs: list[list[int]],
    targets: list[list[int]],
    setting: dict[str, bool],
    parts: dict[str, Any],
    threads: int,
) -> Step:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    builder, _ = PEERS[peer]
    shape = argparse.Namespace(**options)
    return builder(shape, torch.tensor(inputs), torch.tensor(targets), Setting(**setting), **parts)


def updating(forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step(count: int = 1) -> Tensor:
        for _ in range(count):
            loss = forward()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def adamw_step(model: nn.Module, loss: Callable[[Any], Tensor], setting: Setting) -> Step:
    """A step of a model without a training loop of its own: torch's AdamW, fused if tuned."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=setting.tuned or None)
    return updating(run_as(model, loss, setting), optimizer)


def run_as(model: nn.Module, loss: Callable[[Any], Tensor], setting: Setting) -> Callable[[], Tensor]:
    called = torch.compile(model) if setting.compiled else model

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=setting.bfloat16):
            return loss(called)

    return forward


def nanogpt_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting = Setting()) -> Step:
    """nanoGPT's model, loss and optimizer, imported from its checkout, without biases as in its train.py."""
    if not options.nanogpt:
        raise ImportError("no nanoGPT checkout given (--nanogpt FOLDER)")
    model = nanogpt_model(Path(options.nanogpt), options)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its parameter counts
        optimizer = model.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), "cpu")
    return updating(run_as(model, lambda called: called(inputs, targets)[1], setting), optimizer)


def nanogpt_model(checkout: Path, sizes: Any, dropout: float = 0.0) -> Any:
    """The model of a checkout, without biases; `sizes` has layers, width, heads, context and vocab."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass needs it there
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        n_layer=sizes.layers,
        n_embd=sizes.width,
        n_head=sizes.heads,
        block_size=sizes.context,
        vocab_size=sizes.vocab,
        dropout=dropout,
        bias=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its parameter counts
        return module.GPT(config)


def transformers_step(
    options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting = Setting()
) -> Step:
    """Hugging Face's GPT-2; its default attention is torch's SDPA."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        n_positions=options.context,
        vocab_size=options.vocab,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model: Any = GPT2LMHeadModel(config)
    return adamw_step(model, lambda called: cross_entropy(called(input_ids=inputs).logits, targets), setting)


def x_transformers_step(
    options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting, **parts: Any
) -> Step:
    """x-transformers' decoder with learned positions, or with `parts`, its own keywords (activations by torch's names)."""
    from x_transformers import Decoder, TransformerWrapper

    layers = {"attn_dim_head": options.width // options.heads, "attn_flash": setting.tuned, **parts}
    if parts.get("rotary_pos_emb"):
        layers["rotary_emb_dim"] = layers["attn_dim_head"]  # rotate whole heads, like ours
    if activation := parts.get("ff_custom_activation"):
        layers["ff_custom_activation"] = getattr(nn, activation)()
    model = TransformerWrapper(
        num_tokens=options.vocab,
        max_seq_len=options.context,
        tie_embedding=options.tie_embeddings,
        use_abs_pos_emb=not parts.get("rotary_pos_emb", False),
        attn_layers=Decoder(dim=options.width, depth=options.layers, heads=options.heads, **layers),
    )
    return adamw_step(model, lambda called: cross_entropy(called(inputs), targets), setting)


def litgpt_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting) -> Step:
    """litgpt's default architecture, GPT-NeoX."""
    from litgpt import GPT, Config

    config = Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        block_size=options.context,
        vocab_size=options.vocab,
        padded_vocab_size=options.vocab,
    )
    return adamw_step(GPT(config), lambda called: cross_entropy(called(inputs), targets), setting)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


PEERS: dict[str, tuple[Callable[..., Step], bool]] = {
    "nanoGPT": (nanogpt_step, False),
    "transformers": (transformers_step, True),
    "x-transformers": (x_transformers_step, True),
    "litgpt": (litgpt_step, True),
}
"""Each peer's builder, and whether `tuned` applies to it."""

if __name__ == "__main__":
    main()
