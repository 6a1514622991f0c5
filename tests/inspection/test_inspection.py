"""Costs, pages, subjects and the command line of `inspect`."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import partwise
from command_line import run
from partwise.cli import main
from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX
from partwise.inspection import logit_lens
from partwise.inspection.cost import cache_growth, compute_costs, growth_figure
from partwise.inspection.inspections import INSPECTIONS
from partwise.inspection.subject import find_subject
from partwise.inspection.widths import with_layers
from partwise.model.flops import count_flops
from partwise.plots.page import Page, bar_chart, write_page
from partwise.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_costs_sum_to_what_torch_counts(name: str) -> None:
    """Parameters as the sum of `numel`, FLOPs as in FlopCounterMode; no part is missing or counted twice.

    Only the first layers, of every kind in the preset: more would add time but no coverage.
    """
    whole_config = partwise.preset(name)
    layers = min(4, whole_config.n_layers), min(2, whole_config.encoder_layers)
    config = partwise.ModelConfig.from_dict(with_layers(whole_config.to_dict(), *layers))
    *parts, total = compute_costs(config, 16)
    assert total.parameters == config.parameters() == sum(part.parameters for part in parts)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = partwise.Transformer(config)
        model.reset_backends()
        tokens = torch.zeros(1, 16, dtype=torch.long)
        model(tokens, source=tokens if model.encoder else None, mtp_logits=[])
    assert total.flops == pytest.approx(counter.get_total_flops() / 16, rel=1e-12)
    assert total.flops == pytest.approx(sum(part.flops for part in parts), rel=1e-12)
    assert "other" not in {part.part for part in parts}


MATMULS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, y: x @ y.transpose(1, 2),
    lambda x, y: torch.matmul(x, y[0].T) + F.linear(x, y[1]),
    lambda x, y: torch.bmm(x, y.transpose(1, 2)),
    lambda x, y: torch.addmm(x[0, :, :1], x[0], y[0].T),
    lambda x, y: torch.einsum("...nm,...km->...nk", x, y),
    lambda x, y: torch.einsum("nm,bkm->bnk", x[0], y),
    lambda x, y: F.conv1d(x, torch.empty(3, 5, 2)),
    lambda x, y: F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None]),
    lambda x, y: torch.tensordot(x, y, dims=([2], [2])) @ y[0] + x.softmax(-1).sum(),
]


@pytest.mark.parametrize("matmul", MATMULS)
def test_flops_equal_torchs_counter(matmul: Callable[[Tensor, Tensor], Any]) -> None:
    """Matmul functions that custom parts may call, including some that no built-in part does."""
    with torch.device("meta"):
        x, y = torch.empty(4, 5, 6), torch.empty(4, 7, 6)
        with FlopCounterMode(display=False) as counter:
            matmul(x, y)
        assert count_flops(lambda: matmul(x, y)) == counter.get_total_flops() > 0


def attention_cache(name: str, seq_len: int, *words: str) -> int:
    return next(
        part for part in compute_costs(partwise.preset(name, "n_layers=2", *words), seq_len) if part.part == "attention"
    ).cache


def test_cache_sizes_match_the_papers() -> None:
    """Grouped-query attention divides the cache, a sliding window bounds it, MLA stores the latent."""
    layers, width, heads = 2, 96, 8
    assert attention_cache("mingpt", 100) == layers * 2 * width * 100
    assert attention_cache("mingpt", 100, "attention.n_kv_heads=2") == layers * 2 * width * 100 * 2 // heads
    assert attention_cache("mingpt", 100, "attention.window=9") == layers * 2 * width * 8
    latent = ("attention=mla", "attention.n_heads=8", "attention.kv_lora_rank=16", "attention.rope_head_dim=4")
    assert attention_cache("mingpt", 100, *latent) == layers * (16 + 4) * 100


def test_the_cache_grows_with_the_text_until_the_window_ends_it() -> None:
    words = ("d_model=32", "n_layers=2", "attention.n_heads=4", "context_length=64")
    full = partwise.preset("mingpt", *words)
    assert cache_growth(full, [1, 32, 64]) == [2 * 2 * 32 * length for length in (1, 32, 64)]
    assert cache_growth(partwise.preset("mingpt", *words, "attention.n_kv_heads=1"), [64]) == [2 * 2 * 8 * 64]
    windowed = cache_growth(partwise.preset("mingpt", *words, "attention.window=8"), [8, 16, 64])
    assert windowed[0] < cache_growth(full, [64])[0] and windowed[1] == windowed[2]
    (figure,) = growth_figure(full, 64)
    numbers = {(row[0], row[1]): row[2] for row in figure.drawing.rows}
    assert numbers["this model", 64.0] == pytest.approx(4 * 2 * 2 * 32 * 64 / 2**20)
    assert "100.0% of what multi-head attention" in figure.caption


def test_flops_by_hand() -> None:
    by_part = {part.part: part for part in compute_costs(partwise.preset("mingpt"), 128)}
    assert by_part["attention"].flops == 8 * (2 * 4 * 96 * 96 + 2 * 2 * 96 * 128)
    assert by_part["ffn"].flops == 8 * 2 * 2 * 96 * 384
    assert by_part["head"].flops == 2 * 96 * 65


class Parser(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_escapes_its_texts(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write_page(
        tmp_path / "a.html", evil, Page(evil, evil, [evil], [[evil]], [bar_chart(evil, [(evil, 1.0, evil)], "a")])
    )
    page = Parser((tmp_path / "a.html").read_text())
    assert "script" not in page.tags and page.text.count("alert(1)") >= 6
    assert not re.search(r'(src|href)="http', (tmp_path / "a.html").read_text())


def test_a_figure_comes_before_the_table(tmp_path: Path) -> None:
    """A wide figure scrolls on a phone instead of shrinking; a table may have hundreds of rows."""
    figures = [bar_chart(name, [("a", 1.0, "1")], name) for name in ("first", "second")]
    write_page(tmp_path / "a.html", "a", Page("a", "about", ["part"], [["embedding"]], figures))
    text = (tmp_path / "a.html").read_text()
    assert text.index(">first<") < text.index("<svg") < text.index("embedding") < text.index(">second<")
    assert figures[0].min_width == 486  # 0.9 of 7.5 inches at 72 points
    assert text.count(f'style="min-width: 486px; max-width: {figures[0].max_width}px"') == 2


def test_a_text_gives_inputs_targets_and_labels() -> None:
    few = ["data.train=2000", "data.validation=50", "data.test=50"]
    subject = find_subject("mingpt", ["data=arithmetic", "vocab_size=65", *few], text="1+2=")
    row = subject.row()
    assert subject.dataset.tokenizer.decode(row.inputs[0]) == "1+2=" and row.targets[0, -1] == IGNORE_INDEX
    assert subject.token_labels(np.array([row.inputs[0, 0], 60])) == [
        "1",
        "#60",
    ]  # its vocab_size exceeds the tokenizer's
    pairs = find_subject("original", few, text="1+2\t3")
    row = pairs.row()
    assert row.source is not None and pairs.dataset.tokenizer.decode(row.source[0]) == "1+2"
    assert pairs.token_labels(row.inputs[0]) == ["<start>", "3"] and pairs.token_labels(row.targets[0]) == [
        "3",
        "<end>",
    ]
    with pytest.raises(ConfigError, match="separated by a tab"):
        find_subject("original", few, text="1+2").row()


def test_any_script_is_plotted_without_a_warning(tmp_path: Path) -> None:
    """Characters missing from matplotlib's font stay text; unprintable ones become escape codes."""
    (tmp_path / "text.txt").write_text("天地玄黄 <&>\x07" * 100, encoding="utf-8")
    subject = find_subject(
        "mingpt",
        ["n_layers=2", "d_model=16", "attention.n_heads=2", "ffn.expansion=1"],
        data=str(tmp_path / "text.txt"),
        seq_len=12,
    )
    assert {"天", "<", "\\x07"} <= set(subject.token_labels(subject.sample(100).inputs.flatten()))
    svg = logit_lens.map_figure(subject).svg
    assert "玄" in svg and "&lt;" in svg and "\x07" not in svg


def run_inspect(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    """The exit status of `partwise inspect` in a folder, in this process; tests/cli start the program itself."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["partwise", "inspect", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_inspect(monkeypatch, tmp_path, "gemma2", "cost", "attention.n_kv_heads=1") == 0
    total = compute_costs(partwise.preset("gemma2", "attention.n_kv_heads=1"))[-1]
    assert f"{total.parameters:,}" in capsys.readouterr().out
    page = Parser((tmp_path / "inspect-cost-gemma2_attention.n-kv-heads=1.html").read_text())
    assert page.tags.count("svg") == 4 and f"{total.parameters:,}" in page.text


def test_two_models_on_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_inspect(monkeypatch, tmp_path, "llama3", "cost", "--against", "gemma2", "--figures", "made") == 0
    shown = capsys.readouterr().out
    page = Parser((tmp_path / "inspect-cost-llama3_against=gemma2.html").read_text())
    for name in ("llama3", "gemma2"):
        parameters = f"{compute_costs(partwise.preset(name))[-1].parameters:,}"
        assert parameters in page.text and parameters in shown
    assert page.tags.count("svg") == 8
    assert len([*(tmp_path / "made").iterdir()]) == 24 and "figures: 24 files in made" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gemma2", "cost", "--against", "gemma2"], "--against gemma2: is the same model as gemma2"),
        (["gemma2", "cost", "--against", "gema2"], "is not a preset; did you mean 'gemma2'?"),
        (["gema2", "cost"], "is not a preset; did you mean 'gemma2'?"),
        (["gemma2", "costs"], "unknown inspection 'costs'; did you mean 'cost'?"),
        (["gemma2", "cost", "--seq-len", "0"], "--seq-len 0: must be from 1 to 256, the model's context_length"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_inspect(monkeypatch, tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_counting_the_flops_of_small_models_imports_no_compiler() -> None:
    """Importing torch's compiler takes seconds, which may be more than a short comparison's training."""
    code = (
        "import sys, partwise\n"
        "assert [partwise.preset(name).flops_per_token(64) for name in ('fast', 'mingpt', 'toy', 'llama')]\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_json_has_the_path_of_the_page_and_its_table(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "inspect", "mingpt", "cost", "--json", "d_model=48", "n_layers=1") == 0
    shown = json.loads(capsys.readouterr().out)
    assert "<svg" in Path(shown["page"]).read_text()
    assert shown["columns"][0] == "part" and shown["rows"][-1][0] == "total"


def test_every_inspection_of_the_table_exists() -> None:
    for each in INSPECTIONS.values():
        assert callable(import_module(f"partwise.inspection.{each.module}").inspect)
