"""Generation throughput in tokens/s: partwise against llama.cpp and Hugging Face's Llama, on a model of 135M parameters.

    python benchmarks/sampling.py [--rounds 20] [--threads 2] [--tokens 32] [--compile] [--json FILE]

The shape is that of SmolLM-135M, with random weights; llama.cpp (packages xllamacpp and gguf) reads them from a file
written here. All run in one process and alternate: in each round each continues prompts of 64 tokens greedily and is
timed from its first to its last new token. Ratios are taken within a round. Peers that are not installed are reported as
missing. Also measured: our backends against each other, two small models, and the rate by length of the text.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import PAUSE, Row, benchmark_parser, ratios, show_rows, write_rows
from torch import Tensor

import partwise
from partwise.generation.generate import decode, decoding_model
from partwise.generation.sampling import Sampling

SHAPE = {
    "vocab_size": 49152,
    "d_model": 576,
    "n_layers": 30,
    "context_length": 2100,
    "tie_embeddings": True,
    "init": "normal",
}
HEADS, KV_HEADS, HIDDEN, PROMPT = 9, 3, 1536, 64
TARGET = {1: 1.3, 16: 3.0}
LENGTHS, STEPS = (64, 128, 256, 512, 1024, 2048), 8
WINDOW = 64
Rate = Callable[[], float]
"""Continues the prompts by some tokens; returns new tokens per second."""


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    rows, model = list[Row](), smol()
    for batch in options.batch:
        target = TARGET[batch]
        prompts = torch.randint(SHAPE["vocab_size"], (batch, PROMPT), generator=torch.Generator().manual_seed(batch))
        tokens = options.tokens if batch == 1 else max(4, options.tokens // 4)
        with tempfile.TemporaryDirectory() as folder:
            rates, missing = systems(model, prompts, tokens, options, Path(folder))
            measured = alternate(rates, options.rounds)
        for line in missing:
            print(f"missing: {line}")
        peers = [name for name in measured if not name.startswith("partwise")]
        main_peer = [name for name in peers if name.startswith("llama.cpp" if batch == 1 else "transformers")]
        what = f"135M Llama, bfloat16, batch {batch}, after {PROMPT} tokens"
        rows.append(row(what, measured, "partwise cpp bfloat16", main_peer or peers, target))
        rows[-1]["peers"] |= {name: statistics.median(measured[name]) for name in peers} | dict.fromkeys(missing)
        for ours in ("partwise cpp bfloat16", "partwise cpp float32"):
            what = f"135M Llama, batch {batch}: {ours.removeprefix('partwise ')} against eager"
            rows.append(row(what, measured, ours, ["partwise eager float32"], None))
    rows += small_models(options)
    lengths = by_length(options)
    notes = [", ".join(f"{name} {value:.1f}" for name, value in each.items()) for each in lengths]
    show_rows("Generation, tokens/s", rows, *notes)
    write_rows(options.json, rows, lengths=lengths, rounds=options.rounds, threads=options.threads)


def parse_options() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, rounds=20, threads=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per round at batch 1; a quarter at batch 16")
    parser.add_argument("--batch", type=int, nargs="+", choices=list(TARGET), default=list(TARGET))
    parser.add_argument(
        "--compile", action="store_true", help="also measure transformers with torch.compile: takes minutes"
    )
    options = parser.parse_args()
    if options.tokens < 2:
        parser.error(f"--tokens {options.tokens}: must be at least 2")
    return options


def smol(**attention: Any) -> partwise.Transformer:
    parts = {
        "positions": {"part": "rope", "theta": 10000.0, "layout": "interleaved"},
        "attention": {"part": "multihead", "n_heads": HEADS, "n_kv_heads": KV_HEADS, "fused_qkv": False, **attention},
        "ffn": {"part": "swiglu", "hidden": HIDDEN},
        "norm": {"part": "rmsnorm", "eps": 1e-5},
        "residual": "pre",
    }
    return partwise.Transformer(partwise.ModelConfig.from_dict({**SHAPE, **parts})).eval()


def systems(
    model: partwise.Transformer, prompts: Tensor, tokens: int, options: argparse.Namespace, folder: Path
) -> tuple[dict[str, Rate], list[str]]:
    """The systems that can be measured here, and the names of missing packages."""
    rates: dict[str, Rate] = {}
    for precision, backend in (("bfloat16", "cpp"), ("float32", "cpp"), ("float32", "eager")):
        rates[f"partwise {backend} {precision}"] = ours(decoding_model(model, precision, backend), prompts, tokens)
    peers: list[Callable[[], dict[str, Rate]]] = [lambda: transformers_rates(prompts, tokens, options.compile)]
    if len(prompts) == 1:
        peers.insert(0, lambda: llama_cpp_rates(model, prompts, tokens, options.threads, folder))
    missing = []
    for peer in peers:
        try:
            rates |= peer()
        except ImportError as error:
            missing.append(error.name or str(error))
    return rates, missing


def ours(model: Any, prompts: Tensor, tokens: int) -> Rate:
    def rate() -> float:
        times = [time.perf_counter() for _ in decode(model, prompts, torch.zeros(len(prompts), tokens), Sampling(0.0))]
        return tokens_per_second(times, len(prompts))

    return rate


def tokens_per_second(times: list[float], batch: int) -> float:
    """Tokens per second from the first of these times to the last."""
    return batch * (len(times) - 1) / (times[-1] - times[0])


def transformers_rates(prompts: Tensor, tokens: int, compiled: bool) -> dict[str, Rate]:
    """Rates of transformers by default, with a static cache, and optionally with a compiled one. Raises ImportError."""
    from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=SHAPE["vocab_size"],
        hidden_size=SHAPE["d_model"],
        num_hidden_layers=SHAPE["n_layers"],
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=SHAPE["context_length"],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    times: list[float] = []

    class Clock(StoppingCriteria):
        def __call__(self, ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
            times.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool)

    def rate_of(model: Any, **settings: Any) -> Rate:
        def rate() -> float:
            times.clear()
            mask = torch.ones_like(prompts)
            lengths = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}
            model.generate(prompts, attention_mask=mask, stopping_criteria=[Clock()], **lengths, **settings)
            return tokens_per_second(times, len(prompts))

        return rate

    model: Any = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    rates = {
        "transformers bfloat16": rate_of(model),
        "transformers bfloat16, static cache": rate_of(model, cache_implementation="static"),
        # faster on CPUs without native bfloat16
        "transformers float32": rate_of(LlamaForCausalLM(config).eval()),
    }
    if compiled:
        other: Any = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        other.forward = torch.compile(other.forward)
        rates["transformers bfloat16, compiled"] = rate_of(other, cache_implementation="static")
    return rates


def llama_cpp_rates(
    model: partwise.Transformer, prompts: Tensor, tokens: int, threads: int, folder: Path
) -> dict[str, Rate]:
    """Rates of llama.cpp by its own timing, which excludes the prompt. Raises ImportError."""
    import xllamacpp

    file = folder / "model.gguf"
    write_gguf(model, file)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.n_ctx, settings.n_parallel, settings.verbosity = 512, 1, 0
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    request = {"prompt": prompts[0].tolist(), "n_predict": tokens, "ignore_eos": True, "temperature": 0.0}

    def rate() -> float:
        timings = server.handle_completions({**request, "cache_prompt": False})["timings"]
        assert timings["predicted_n"] == tokens, timings
        return float(timings["predicted_per_second"])

    return {"llama.cpp bfloat16": rate}


def write_gguf(model: partwise.Transformer, file: Path) -> None:
    """Write the model in GGUF, with a vocabulary of meaningless words. Raises ImportError."""
    import gguf

    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(SHAPE["context_length"])
    writer.add_embedding_length(SHAPE["d_model"])
    writer.add_block_count(SHAPE["n_layers"])
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(SHAPE["d_model"] // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(SHAPE["vocab_size"])
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    rest = SHAPE["vocab_size"] - len(words)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words + [f"w{number}" for number in range(rest)])
    writer.add_token_scores([0.0] * SHAPE["vocab_size"])
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * rest)
    for name, tensor in gguf_tensors(model):
        if tensor.dim() == 1:
            writer.add_tensor(name, tensor.detach().numpy())
        else:
            bits = tensor.detach().bfloat16().view(torch.uint8).numpy()
            writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: partwise.Transformer) -> Iterator[tuple[str, Tensor]]:
    tensors = model.state_dict()
    yield "token_embd.weight", tensors["embed.weight"]
    yield "output_norm.weight", tensors["residual.norm.weight"]
    names = {
        "residual.norms.attention": "attn_norm",
        "residual.norms.ffn": "ffn_norm",
        **{f"attention.{key}": f"attn_{key}" for key in "qkv"},
        "attention.out": "attn_output",
        **{f"ffn.{key}": f"ffn_{key}" for key in ("gate", "up", "down")},
    }
    for layer in range(SHAPE["n_layers"]):
        for our_name, gguf_name in names.items():
            yield f"blk.{layer}.{gguf_name}.weight", tensors[f"blocks.{layer}.{our_name}.weight"]


def small_models(options: argparse.Namespace) -> Iterator[Row]:
    """Models for which the overhead of calls dominates in eager mode."""
    narrow = partwise.preset(
        "mingpt", "n_layers=8", "d_model=96", "context_length=128", "attention.n_heads=8", vocab_size=65
    )
    for name, config in (
        ("8 layers of width 96", narrow),
        ("the preset shakespeare", partwise.preset("shakespeare", vocab_size=65)),
    ):
        model, prompts = partwise.Transformer(config).eval(), torch.zeros(1, 16, dtype=torch.long)
        rates = {
            f"partwise {backend} float32": ours(decoding_model(model, backend=backend), prompts, 100)
            for backend in ("cpp", "eager")
        }
        measured = alternate(rates, options.rounds)
        what = f"{name}, batch 1: cpp against eager"
        yield row(what, measured, "partwise cpp float32", ["partwise eager float32"], None)


def by_length(options: argparse.Namespace) -> list[dict[str, float]]:
    """Tokens per second after texts of each length, with full attention and with a sliding window, alternating."""
    models: dict[str, Any] = {
        name: decoding_model(smol(**attention), "bfloat16", "cpp")
        for name, attention in (("full", {}), (f"window {WINDOW}", {"window": WINDOW}))
    }
    result = []
    for length in LENGTHS:
        rates = {name: at_length(model, length) for name, model in models.items()}
        medians = {
            name: statistics.median(each) for name, each in alternate(rates, max(3, options.rounds // 4)).items()
        }
        result.append({"length": length, **medians})
    return result


def at_length(model: Any, length: int) -> Rate:
    cache = model.new_cache(1, length + STEPS)
    model(torch.zeros(1, length, dtype=torch.long), cache)
    token = torch.zeros(1, 1, dtype=torch.long)

    def rate() -> float:
        cache.truncate(length)
        began = time.perf_counter()
        for _ in range(STEPS):
            model(token, cache).argmax(-1)
        return STEPS / (time.perf_counter() - began)

    return rate


def alternate(rates: dict[str, Rate], rounds: int) -> dict[str, list[float]]:
    """The rates of all systems in each round, after a warm-up round."""
    measured: dict[str, list[float]] = {name: [] for name in rates}
    names = list(rates)
    print(f"{rounds} rounds of {', '.join(names)}", file=sys.stderr)
    for round_ in range(-1, rounds):
        shift = round_ % len(names)  # vary which of the others runs before each one
        for name in names[shift:] + names[:shift]:
            time.sleep(PAUSE)
            rate = rates[name]()
            if round_ >= 0:
                measured[name].append(rate)
    return measured


def row(what: str, measured: dict[str, list[float]], ours: str, peers: list[str], target: float | None) -> Row:
    """A row of ours against the peer with the highest median."""
    medians = {name: statistics.median(measured[name]) for name in [ours, *peers]}
    best = max(peers, key=lambda name: medians[name])
    return {
        "goal": "sampling",
        "what": what,
        "ours": medians.pop(ours),
        "unit": "tokens/s",
        "peers": medians,
        **ratios(measured[ours], measured[best]),
        "target": target,
    }


if __name__ == "__main__":
    main()
