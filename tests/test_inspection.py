"""What `inspect` says of a model is true of the model."""

import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import partwise
from partwise.cli import main
from partwise.config import ConfigError
from partwise.data import IGNORED
from partwise.inspection import lens
from partwise.inspection.cost import costs
from partwise.inspection.page import Look, bars, write_page
from partwise.inspection.subject import find_subject
from partwise.inspection.widths import shallow
from partwise.operations import count_operations
from partwise.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_costs_sum_to_what_torch_counts(name: str) -> None:
    """Parameters as in the sum of `numel`, operations as in FlopCounterMode; no part is left over or counted twice.

    On the first layers alone, of every kind that the preset has: more of them would cost time, and be the same again.
    """
    whole_config = partwise.preset(name)
    layers = min(4, whole_config.n_layers), min(2, whole_config.encoder_layers)
    config = partwise.ModelConfig.from_dict(shallow(whole_config.to_dict(), *layers))
    *parts, whole = costs(config, 16)
    assert whole.parameters == config.parameters() == sum(part.parameters for part in parts)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = partwise.Transformer(config)
        model.use_path("products")
        tokens = torch.zeros(1, 16, dtype=torch.long)
        model(tokens, source=tokens if model.encoder else None, ahead=[])
    assert whole.flops == pytest.approx(counter.get_total_flops() / 16, rel=1e-12)
    assert whole.flops == pytest.approx(sum(part.flops for part in parts), rel=1e-12)
    assert "elsewhere" not in {part.part for part in parts}


PRODUCTS: list[Callable[[Tensor, Tensor], Any]] = [
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


@pytest.mark.parametrize("products", PRODUCTS)
def test_operations_are_those_that_torch_counts(products: Callable[[Tensor, Tensor], Any]) -> None:
    """What a part of one's own may call, and what no part here does."""
    with torch.device("meta"):
        x, y = torch.empty(4, 5, 6), torch.empty(4, 7, 6)
        with FlopCounterMode(display=False) as counter:
            products(x, y)
        assert count_operations(lambda: products(x, y)) == counter.get_total_flops() > 0


def cache(name: str, context: int, *words: str) -> int:
    return next(
        part for part in costs(partwise.preset(name, "n_layers=2", *words), context) if part.part == "attention"
    ).cache


def test_caches_have_their_papers_size() -> None:
    """Grouped heads divide the cache, a window bounds it, a latent replaces it."""
    layers, width, heads = 2, 96, 8
    assert cache("mingpt", 100) == layers * 2 * width * 100
    assert cache("mingpt", 100, "attention.n_kv_heads=2") == layers * 2 * width * 100 * 2 // heads
    assert cache("mingpt", 100, "attention.window=9") == layers * 2 * width * 8
    latent = ("attention=latent", "attention.n_heads=8", "attention.kv_rank=16", "attention.rope_dim=4")
    assert cache("mingpt", 100, *latent) == layers * (16 + 4) * 100


def test_operations_by_hand() -> None:
    found = {part.part: part for part in costs(partwise.preset("mingpt"), 128)}
    assert found["attention"].flops == 8 * (2 * 4 * 96 * 96 + 2 * 2 * 96 * 128)
    assert found["ffn"].flops == 8 * 2 * 2 * 96 * 384
    assert found["head"].flops == 2 * 96 * 65


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_escapes_what_it_is_given(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write_page(tmp_path / "a.html", evil, Look(evil, evil, [evil], [[evil]], [bars(evil, [(evil, 1.0, evil)], "a")]))
    page = Page((tmp_path / "a.html").read_text())
    assert "script" not in page.tags and page.text.count("alert(1)") >= 6
    assert not re.search(r'(src|href)="http', (tmp_path / "a.html").read_text())


def test_a_text_is_shown_as_it_is_read() -> None:
    subject = find_subject("mingpt", [], text="1+2=")
    row = subject.row()
    assert subject.dataset.tokenizer.decode(row.inputs[0]) == "1+2=" and row.targets[0, -1] == IGNORED
    assert subject.symbols(np.array([row.inputs[0, 0], 60])) == ["1", "#60"]  # a preset has more ids than the text
    pairs = find_subject("original", [], text="1+2\t3")
    row = pairs.row()
    assert row.source is not None and pairs.dataset.tokenizer.decode(row.source[0]) == "1+2"
    assert pairs.symbols(row.inputs[0]) == ["<start>", "3"] and pairs.symbols(row.targets[0]) == ["3", "<end>"]
    with pytest.raises(ConfigError, match="with a tab between them"):
        find_subject("original", [], text="1+2").row()


def test_any_script_is_drawn_without_a_warning(tmp_path: Path) -> None:
    """What matplotlib's font lacks stays text; what cannot be seen is written as its number."""
    (tmp_path / "text.txt").write_text("天地玄黄 <&>\x07" * 100, encoding="utf-8")
    subject = find_subject(
        "mingpt",
        ["n_layers=2", "d_model=16", "attention.n_heads=2", "ffn.expansion=1"],
        data=str(tmp_path / "text.txt"),
        context=12,
    )
    assert {"天", "<", "\\x07"} <= set(subject.symbols(subject.sample(100).inputs.flatten()))
    drawn = lens.map_of(subject).svg
    assert "玄" in drawn and "&lt;" in drawn and "\x07" not in drawn


def inspect(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    """The status of `partwise inspect` in a folder; that the program starts at all is tested with the command line."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["partwise", "inspect", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(monkeypatch, tmp_path, "gemma2", "cost", "attention.n_kv_heads=1") == 0
    found = costs(partwise.preset("gemma2", "attention.n_kv_heads=1"))
    assert f"{found[-1].parameters:,}" in capsys.readouterr().out
    page = Page((tmp_path / "inspect-cost-gemma2.html").read_text())
    assert page.tags.count("svg") == 3 and f"{found[-1].parameters:,}" in page.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gema2", "cost"], "is no preset; did you mean 'gemma2'?"),
        (["gemma2", "costs"], "unknown look 'costs'; did you mean 'cost'?"),
        (["gemma2", "cost", "--context", "0"], "--context 0: give 1 to max_len=256"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inspect(monkeypatch, tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_counting_the_operations_of_small_models_imports_no_compiler() -> None:
    """Which takes seconds: more than a short comparison's training may."""
    code = (
        "import sys, partwise\n"
        "assert [partwise.preset(name).flops_per_token(64) for name in ('fast', 'mingpt', 'toy', 'llama')]\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
