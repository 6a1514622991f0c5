"""The training steps of other projects, each built as its own users would build it, at one shape.

Every builder takes (options, inputs, targets, setting), `options` with layers, width, heads, context, vocab and whether
the head is tied, and gives a step. Raises ImportError where the peer is not installed.

Run as a script it is one peer, for `peer_process.py`: the first line on standard input is the task as JSON, every further
one a number of steps to take. It answers each with a line of JSON, which has the last step's loss, or what went wrong.
Nothing here imports partwise, which need not be installed where a peer is.
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
"""Takes so many training steps, one unless told, and gives the last one's loss."""


@dataclass(frozen=True)
class Setting:
    """How a peer is run: as it comes, or with what its users can switch on without touching its code."""

    tuned: bool = False  # torch's fused attention and fused AdamW, where the peer leaves the choice
    compiled: bool = False
    bfloat16: bool = False

    def __str__(self) -> str:
        switched = [name for name, on in asdict(self).items() if on]
        return ", ".join(switched) or "default"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints must not pass for an answer
    try:
        step = build(**json.loads(sys.stdin.readline()))
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps({"loss": float(step(int(line)))}), file=answers, flush=True)
    except Exception as error:  # whoever asked says why, and goes on without this one
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


def trained(model: nn.Module, loss: Callable[[Any], Tensor], setting: Setting) -> Step:
    """A step of a model whose project leaves the loop to its user: torch's AdamW, fused where tuned."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=setting.tuned or None)
    return updating(run_as(model, loss, setting), optimizer)


def run_as(model: nn.Module, loss: Callable[[Any], Tensor], setting: Setting) -> Callable[[], Tensor]:
    called = torch.compile(model) if setting.compiled else model

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=setting.bfloat16):
            return loss(called)

    return forward


def nanogpt_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting = Setting()) -> Step:
    """nanoGPT's own model, loss and optimizer, imported from its checkout, without biases as its train.py has it."""
    if not options.nanogpt:
        raise ImportError("no checkout of nanoGPT was named (--nanogpt FOLDER)")
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(options.nanogpt) / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        block_size=options.context,
        vocab_size=options.vocab,
        dropout=0.0,
        bias=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it reports its parameter counts
        model = module.GPT(config)
        optimizer = model.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), "cpu")
    return updating(run_as(model, lambda called: called(inputs, targets)[1], setting), optimizer)


def transformers_step(
    options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting = Setting()
) -> Step:
    """GPT-2 as Hugging Face builds it; its attention is torch's fused one by default."""
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
    return trained(model, lambda called: cross_entropy(called(input_ids=inputs).logits, targets), setting)


def x_transformers_step(
    options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting, **parts: Any
) -> Step:
    """Its decoder with learned positions, or with `parts` as its own keywords name them, an activation by torch's name."""
    from x_transformers import Decoder, TransformerWrapper

    layers = {"attn_dim_head": options.width // options.heads, "attn_flash": setting.tuned, **parts}
    if parts.get("rotary_pos_emb"):
        layers["rotary_emb_dim"] = layers["attn_dim_head"]  # all of a head turns, as ours does
    if activation := parts.get("ff_custom_activation"):
        layers["ff_custom_activation"] = getattr(nn, activation)()
    model = TransformerWrapper(
        num_tokens=options.vocab,
        max_seq_len=options.context,
        tie_embedding=options.tied,
        use_abs_pos_emb=not parts.get("rotary_pos_emb", False),
        attn_layers=Decoder(dim=options.width, depth=options.layers, heads=options.heads, **layers),
    )
    return trained(model, lambda called: cross_entropy(called(inputs), targets), setting)


def litgpt_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting) -> Step:
    """Its default architecture, GPT-NeoX's."""
    from litgpt import GPT, Config

    config = Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        block_size=options.context,
        vocab_size=options.vocab,
        padded_vocab_size=options.vocab,
    )
    return trained(GPT(config), lambda called: cross_entropy(called(inputs), targets), setting)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


PEERS: dict[str, tuple[Callable[..., Step], bool]] = {
    "nanoGPT": (nanogpt_step, False),
    "transformers": (transformers_step, True),
    "x-transformers": (x_transformers_step, True),
    "litgpt": (litgpt_step, True),
}
"""Each peer's builder, and whether it leaves the optimizer to its user."""

if __name__ == "__main__":
    main()
