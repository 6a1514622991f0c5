"""The training steps of other projects, each built as its own users would build it, at one shape.

Every builder takes (options, setting, inputs, targets), `options` with layers, width, heads, context, vocab and
whether the head is tied, and gives a step. Raises ImportError where the peer is not installed.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import Step
from torch import Tensor, nn
from torch.nn import functional as F

from partwise.train.choices import fast_bfloat16

LEARNING_RATE = 3e-4
COMPILE_SECONDS = 240  # longer than this, and a peer counts as not compiled


@dataclass(frozen=True)
class Setting:
    """How a peer is run: as it comes, or with what its users can switch on without touching its code."""

    tuned: bool = False  # torch's fused attention and fused AdamW, where the peer leaves the choice
    compiled: bool = False
    bfloat16: bool = False

    def __str__(self) -> str:
        switched = [name for name, on in asdict(self).items() if on]
        return ", ".join(switched) or "default"


def settings(tunable: bool) -> list[Setting]:
    """What is tried for a peer, its default first; bfloat16 only where the processor has products of its own for it."""
    tried = [Setting()]
    for bfloat16 in (False, True) if fast_bfloat16("cpu") else (False,):
        tried += [Setting(tunable, compiled, bfloat16) for compiled in (False, True)]
    return list(dict.fromkeys(tried))


def updating(forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> Tensor:
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


def nanogpt_step(
    options: argparse.Namespace,
    inputs: Tensor,
    targets: Tensor,
    setting: Setting = Setting(),
) -> Step:
    """nanoGPT's own model, loss and optimizer, imported from its checkout, without biases as its train.py has it."""
    if not options.nanogpt:
        raise ImportError("no checkout of nanoGPT was named (--nanogpt FOLDER)")
    spec = importlib.util.spec_from_file_location("nanogpt_model", options.nanogpt / "model.py")
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


def transformers_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting) -> Step:
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
    """Its decoder with learned positions, or with `parts` as its own keywords name them."""
    from x_transformers import Decoder, TransformerWrapper

    layers = {"attn_dim_head": options.width // options.heads, "attn_flash": setting.tuned, **parts}
    if parts.get("rotary_pos_emb"):
        layers["rotary_emb_dim"] = layers["attn_dim_head"]  # all of a head turns, as ours does
    model = TransformerWrapper(
        num_tokens=options.vocab,
        max_seq_len=options.context,
        tie_embedding=options.tied,
        use_abs_pos_emb=not parts.get("rotary_pos_emb", False),
        attn_layers=Decoder(dim=options.width, depth=options.layers, heads=options.heads, **layers),
    )
    return trained(model, lambda called: cross_entropy(called(inputs), targets), setting)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Litgpt:
    """litgpt in an environment of its own: a process that takes one step for every line it is sent."""

    def __init__(self, options: argparse.Namespace, inputs: Tensor, targets: Tensor, setting: Setting) -> None:
        if not options.litgpt or not options.litgpt.exists():
            raise ImportError("no Python with litgpt was named (--litgpt FILE)")
        shape = {key: getattr(options, key) for key in ("layers", "width", "heads", "context", "vocab")}
        task = {**shape, **asdict(setting), "threads": torch.get_num_threads(), "lr": LEARNING_RATE}
        self.process = subprocess.Popen(
            [options.litgpt, str(Path(__file__).with_name("litgpt_step.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.ask(json.dumps({**task, "inputs": inputs.tolist(), "targets": targets.tolist()}))
        except (RuntimeError, BrokenPipeError):
            raise ImportError(f"{options.litgpt} cannot import litgpt, or build its model") from None

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], COMPILE_SECONDS)[0]:
            raise TimeoutError
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("litgpt's process ended")
        return answer

    def __call__(self) -> float:
        return float(self.ask("step"))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError within what takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Builder = Callable[[argparse.Namespace, Tensor, Tensor, Setting], Step]
PEERS: dict[str, tuple[Builder, bool]] = {
    "nanoGPT": (nanogpt_step, False),
    "transformers": (transformers_step, True),
    "x-transformers": (x_transformers_step, True),
    "litgpt": (Litgpt, True),
}
"""Each peer's builder, and whether it leaves the optimizer to its user."""
