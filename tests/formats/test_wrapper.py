"""The wrapper computes what our models compute, and `generate`, `Trainer` and PEFT work on it."""

import json
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import partwise
from lazy_imports import lazy_module
from partwise.cli import main
from partwise.config import REGISTRY, ConfigError
from partwise.generation.generate import generate
from partwise.parts.contracts import FeedForward
from partwise.tokenizers import CharacterTokenizer, WithSpecialTokens, load_tokenizer
from partwise.train.run_folder import RunFolder
from recipes import MODEL_PARTS, VOCAB, configs, error, logits_of, perturbed, source_of, tokens

transformers = lazy_module("transformers")
wrapper = lazy_module("partwise.formats.wrapper", needs="transformers")
wrapper_folder = lazy_module("partwise.formats.wrapper.folder", needs="transformers")

EXACT = 1e-12
SIZES = {"vocab_size": VOCAB, "context_length": 32, "d_model": 8, "n_layers": 2}
TOKENIZER = CharacterTokenizer("abcdefghijk")
relaxed: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow],
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.disable_progress_bar()


def build(**parts: Any) -> partwise.Transformer:
    return perturbed(partwise.ModelConfig.from_dict({**SIZES, **parts}))


def pairs(**parts: Any) -> partwise.Transformer:
    return build(encoder_layers=1, padding_idx=VOCAB - 3, **parts)


def special_ids() -> dict[str, int]:
    return {
        "pad_token_id": VOCAB - 3,
        "bos_token_id": VOCAB - 2,
        "eos_token_id": VOCAB - 1,
        "decoder_start_token_id": VOCAB - 2,
    }


def wrapped_logits(wrapped: Any, model: partwise.Transformer, inputs: Tensor, **options: Any) -> Tensor:
    source = source_of(model, inputs)
    if source is None:
        return wrapped(inputs, **options).logits
    return wrapped(input_ids=source, decoder_input_ids=inputs, **options).logits


def reload(wrapped: Any, folder: Path) -> Any:
    wrapped.save_pretrained(folder)
    auto = transformers.AutoModelForSeq2SeqLM if wrapped.has_encoder else transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype="auto").eval()  # the default of version 4 is float32


@pytest.mark.parametrize(("family", "name"), MODEL_PARTS)
@settings(max_examples=1, **relaxed)
@given(data=st.data())
def test_every_part_computes_the_same_logits(
    family: str, name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Wrapped; saved and loaded; and with a cache that is reordered: logits of our model, and its tensors by name."""
    config = data.draw(configs(family, name))
    model, inputs = perturbed(config), tokens()
    model.fit(tokens(1, 11).flatten().numpy())
    with torch.no_grad():
        expected = logits_of(model, inputs)
        wrapped = wrapper.wrap(model)
        assert error(wrapped_logits(wrapped, model, inputs), expected) <= EXACT
        state = wrapped.state_dict()
        assert {*state} == {f"model.{key}" for key in model.state_dict()}
        assert all(torch.equal(state[f"model.{key}"], tensor) for key, tensor in model.state_dict().items())
        assert {key for key, _ in wrapped.named_parameters()} <= {*state}  # what adapters and loaders look for
        loaded = reload(wrapped, tmp_path_factory.mktemp("hf"))
        assert {*loaded.state_dict()} == {*state}
        assert error(wrapped_logits(loaded, model, inputs), expected) <= EXACT
        source = source_of(model, inputs)
        first = (
            {"input_ids": inputs[:, :3]}
            if source is None
            else {"input_ids": source, "decoder_input_ids": inputs[:, :3]}
        )
        output = loaded(**first, use_cache=True)
        output[wrapper.base.CACHE_NAME].reorder_cache(torch.tensor([1, 0]))
        rest = inputs[:, 3:].flip(0)
        second = {"input_ids": rest} if source is None else {"decoder_input_ids": rest, "input_ids": source}
        second_logits = loaded(**second, **{wrapper.base.CACHE_NAME: output[wrapper.base.CACHE_NAME]}).logits
        assert error(torch.cat([output.logits, second_logits.flip(0)], dim=1), expected) <= EXACT


DECODERS = [
    {},
    {"positions": "learned", "norm": "layernorm", "residual": "post", "ffn": "gelu"},
    {"positions": "alibi", "attention": {"part": "multihead", "window": 4}, "short_conv": "conv"},
    {"attention": {"part": "mla", "n_heads": 2}, "ffn": "moe", "tie_embeddings": True},
    {"attention": "differential", "ngram_embeddings": {"part": "hashed", "max_n": 2, "table_size": 50}},
]
each_decoder = pytest.mark.parametrize("parts", list(DECODERS))


@each_decoder
def test_generate_with_a_cache_equals_without_and_our_text(parts: dict[str, Any]) -> None:
    model = build(**parts)
    wrapped, inputs = wrapper.wrap(model), tokens(3, 5)
    options: dict[str, Any] = {"max_new_tokens": 20}
    greedy = wrapped.generate(inputs, do_sample=False, **options)
    assert torch.equal(greedy, wrapped.generate(inputs, do_sample=False, use_cache=False, **options))
    prompts = [TOKENIZER.decode(row) for row in inputs]
    ours = generate(model, TOKENIZER, prompts, temperature=0.0, backend="eager", **options)
    assert [TOKENIZER.decode(row[5:]) for row in greedy] == ours
    sampled = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        sampled.append(wrapped.generate(inputs, do_sample=True, top_k=5, use_cache=use_cache, **options))
    assert torch.equal(*sampled) and not torch.equal(sampled[0], greedy)


def plain_beams(logits_after: Any, prompt: list[int], num_beams: int, steps: int) -> list[int]:
    """Beam search without an end token, from whole rows: the most likely continuation of fixed length it finds."""
    beams = [(0.0, list(prompt))]
    for _ in range(steps):
        scored = []
        for score, row in beams:
            log_p = F.log_softmax(logits_after(row), dim=-1)
            scored += [(score + log_p[token].item(), [*row, token]) for token in range(len(log_p))]
        beams = sorted(scored, key=lambda beam: -beam[0])[:num_beams]
    return beams[0][1]


@each_decoder
def test_beams_equal_a_plain_search(parts: dict[str, Any]) -> None:
    model = build(**parts)
    wrapped, inputs = wrapper.wrap(model), tokens(2, 4)
    found = wrapped.generate(inputs, num_beams=3, max_new_tokens=6, do_sample=False)
    with torch.no_grad():
        for row, prompt in zip(found.tolist(), inputs.tolist(), strict=True):
            assert row == plain_beams(lambda ids: model(torch.tensor([ids]))[0, -1], prompt, 3, 6)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_source_is_continued_greedily_and_with_beams(use_cache: bool) -> None:
    model = pairs()
    wrapped = wrapper.wrap(model, **special_ids()).eval()
    wrapped.generation_config.eos_token_id = None  # fixed lengths, as the plain search has them
    source = torch.tensor([[1, 4, 2, 5], [3, 6, VOCAB - 3, VOCAB - 3]])
    mask = (source != VOCAB - 3).long()
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "use_cache": use_cache, "do_sample": False}
    for beams in (1, 3):
        found = wrapped.generate(source, num_beams=beams, **options)
        with torch.no_grad():
            for row, length in ((0, 4), (1, 2)):  # without padding, each on its own

                def last(ids: list[int], row: int = row, length: int = length) -> Tensor:
                    return model(torch.tensor([ids]), source=source[row : row + 1, :length])[0, -1]

                assert found[row].tolist() == plain_beams(last, [VOCAB - 2], beams, 6)


@pytest.mark.parametrize("padding", [[], float("inf")])
def test_a_tokenizer_that_transformers_cannot_read_is_one_line(padding: Any, tmp_path: Path) -> None:
    tokenizer = load_tokenizer_with(padding, tmp_path)
    with pytest.raises(ConfigError, match=r"transformers cannot read tokenizer\.json"):
        wrapper_folder.save_wrapped(build(), tokenizer, tmp_path / "hf")


def load_tokenizer_with(padding: Any, folder: Path) -> Any:
    model = {"type": "WordPiece", "unk_token": "b", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    values = {"version": "1.0", "added_tokens": [], "model": {**model, "vocab": {"a": 0, "b": 1}}, "padding": padding}
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return load_tokenizer(folder / "tokenizer.json")


def test_streamed_text_is_the_returned_text(tmp_path: Path) -> None:
    wrapper_folder.save_wrapped(build(), TOKENIZER, tmp_path / "hf")
    wrapped = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer("abc", return_tensors="pt")
    streamer = transformers.TextIteratorStreamer(tokenizer)
    found = wrapped.generate(inputs.input_ids, max_new_tokens=12, do_sample=False, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(found[0]) and len(found[0]) == 15


@each_decoder
def test_padding_on_either_side_changes_no_token(parts: dict[str, Any]) -> None:
    model = build(**parts)
    wrapped, short = wrapper.wrap(model), tokens(1, 5)
    with torch.no_grad():
        alone = model(short)
        for side in ("left", "right"):
            pads = (3, 0) if side == "left" else (0, 3)
            batch = torch.cat([tokens(1, 8, shift=1), F.pad(short, pads, value=7)])
            mask = torch.cat([torch.ones(1, 8), F.pad(torch.ones(1, 5), pads)]).long()
            own = slice(3, 8) if side == "left" else slice(0, 5)
            assert error(wrapped(batch, attention_mask=mask).logits[1:, own], alone) <= EXACT
    batch = torch.cat([tokens(1, 8, shift=1), F.pad(short, (3, 0), value=7)])
    mask = torch.cat([torch.ones(1, 8), F.pad(torch.ones(1, 5), (3, 0))]).long()
    for beams in (1, 3):
        options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams}
        found = wrapped.generate(batch, attention_mask=mask, **options)
        assert torch.equal(found[1:, 8:], wrapped.generate(short, **options)[:, 5:])


def test_labels_are_shifted_as_in_transformers() -> None:
    model, inputs = build(), tokens(2, 8)
    labels = inputs.clone()
    labels[0, :3] = -100
    wrapped = wrapper.wrap(model)
    logits = model(inputs).float()
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert torch.allclose(wrapped(inputs, labels=labels).loss, expected, rtol=0, atol=1e-6)
    count = int((labels[:, 1:] != -100).sum())
    half = wrapped(inputs, labels=labels, num_items_in_batch=2 * count).loss
    assert torch.allclose(half, expected / 2, rtol=0, atol=1e-6)


def test_labels_of_pairs_are_the_targets_after_the_start_token() -> None:
    model = pairs()
    source, labels = torch.tensor([[1, 4, 2]]), torch.tensor([[5, 6, -100]])
    logits = model(torch.tensor([[VOCAB - 2, 5, 6]]), source=source)[0, :2].float()
    found = wrapper.wrap(model, **special_ids())(input_ids=source, labels=labels).loss
    assert torch.allclose(found, F.cross_entropy(logits, labels[0, :2]), rtol=0, atol=1e-6)


def test_training_adds_the_terms_of_the_layers() -> None:
    """Load balancing and multi-token prediction, by their equations; not in evaluation."""
    moe = {"part": "moe", "load_balancing": "aux_loss", "aux_loss_coef": 0.5}
    model, inputs = build(ffn=moe, mtp={"part": "heads", "n_tokens": 2, "loss_weight": 0.25}), tokens(2, 8)
    auxiliary, mtp_logits = list[Tensor](), list[Tensor]()
    logits = model.train()(inputs, aux_losses=auxiliary, mtp_logits=mtp_logits)
    own = F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())
    ahead = sum(
        F.cross_entropy(mtp_logits[k][:, : -2 - k].flatten(0, 1), inputs[:, 2 + k :].flatten()) for k in range(2)
    )
    wrapped = wrapper.wrap(model.eval())
    assert torch.allclose(wrapped(inputs, labels=inputs).loss.double(), own, rtol=0, atol=1e-6)
    total = own + 0.25 * ahead + sum(auxiliary)
    assert sum(auxiliary) > 1e-3
    assert torch.allclose(wrapped.train()(inputs, labels=inputs).loss.double(), total, rtol=0, atol=1e-5)


def rows_of_text(count: int) -> list[dict[str, Tensor]]:
    choices = random.Random(3)
    return [
        {"input_ids": ids, "labels": ids}
        for ids in (torch.arange(16).add(choices.randrange(5)) % 5 for _ in range(count))
    ]


def train(model: Any, folder: Path, rows: list[dict[str, Tensor]], **options: Any) -> list[float]:
    """One epoch; the losses before and after it."""
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:16], **options)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return [before, trainer.evaluate()["eval_loss"]]


@pytest.mark.filterwarnings("ignore")
def test_trainer_lowers_the_loss_and_balances_routers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    ffn = {"part": "moe", "load_balancing": "bias", "bias_update_rate": 0.01}
    config = partwise.ModelConfig.from_dict({**SIZES, "d_model": 16, "ffn": ffn, "embed_dropout": 0.1})
    wrapped = wrapper.wrap(partwise.Transformer(config))
    before, after = train(wrapped, tmp_path, rows_of_text(400), callbacks=[wrapper.AfterStep()])
    assert after < 0.5 * before
    biases = [buffer for name, buffer in wrapped.named_buffers() if name.endswith("bias")]
    assert len(biases) == 2 and all(bias.abs().max() > 0 for bias in biases)


@pytest.mark.filterwarnings("ignore")
def test_trainer_trains_pairs(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    wrapped = wrapper.wrap(pairs(d_model=16).float(), **special_ids())
    rows = [{"input_ids": row["input_ids"][:6], "labels": row["labels"][6:12]} for row in rows_of_text(400)]
    before, after = train(wrapped, tmp_path, rows)
    assert after < 0.5 * before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [*DECODERS, {"encoder_layers": 1, "padding_idx": VOCAB - 3}])
def test_lora_trains_only_adapters_and_every_adapter(parts: dict[str, Any]) -> None:
    """Each adapter has a gradient; cached generation computes what the whole rows compute, with adapters; merging too."""
    peft = pytest.importorskip("peft")
    model = build(**parts)
    wrapped = wrapper.wrap(model, **(special_ids() if model.encoder else {}))
    inputs = tokens(2, 8)
    batch = {"input_ids": inputs, "labels": inputs}
    before = wrapped(**batch).logits.detach()
    linears = {name.rpartition(".")[2] for name, module in wrapped.named_modules() if type(module) is torch.nn.Linear}
    kind = "SEQ_2_SEQ_LM" if model.encoder else "CAUSAL_LM"
    adapted = peft.get_peft_model(
        wrapped,
        peft.LoraConfig(task_type=kind, r=2, target_modules=sorted(linears - {"head"}), init_lora_weights=False),
    )
    adapted.train()
    adapted(**batch).loss.backward()
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    for name, parameter in trained.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
    torch.optim.SGD(trained.values(), lr=0.1).step()
    adapted.eval()
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    with torch.no_grad():
        with_cache = adapted.generate(input_ids=inputs, **options)
        assert torch.equal(with_cache, adapted.generate(input_ids=inputs, use_cache=False, **options))
        changed = adapted(**batch).logits
        with adapted.disable_adapter():
            assert error(adapted(**batch).logits, before) <= EXACT
        assert error(changed, before) > 1e-6
        assert error(adapted.merge_and_unload()(**batch).logits, changed) <= 1e-10


def test_the_folder_loads_in_a_fresh_process_with_one_import(tmp_path: Path) -> None:
    model = build(ngram_lm={"part": "kneser_ney", "context_tokens": 2}, tie_embeddings=True)
    model.fit(tokens(1, 11).flatten().numpy())
    wrapper_folder.save_wrapped(model, TOKENIZER, tmp_path / "hf", dtype=torch.float64, card="# A model")
    code = """
import json, sys, torch, transformers
import partwise.formats.wrapper
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
inputs = tokenizer("abcab", return_tensors="pt").input_ids
text = model.generate(inputs, max_new_tokens=9, do_sample=False)
print(json.dumps([model(inputs).logits.tolist(), tokenizer.decode(text[0])]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hf")], capture_output=True, text=True, check=True
    )
    logits, text = json.loads(done.stdout.splitlines()[-1])
    ids = torch.from_numpy(TOKENIZER.encode("abcab"))[None]
    assert error(torch.tensor(logits, dtype=torch.float64), model(ids)) <= EXACT
    assert text == "abcab" + generate(model, TOKENIZER, ["abcab"], max_new_tokens=9, temperature=0.0)[0]
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert names - {"special_tokens_map.json"} == {  # which version 4 writes, too
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert "auto_map" not in json.loads((tmp_path / "hf" / "config.json").read_text())
    assert load_tokenizer(tmp_path / "hf").encode("abk").tolist() == [0, 1, 10]


def test_export_writes_a_model_of_no_family(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in RunFolder(tmp_path / "runs" / "mine", tiny("attention.sinks=true")).events():
        pass

    def export(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["partwise", "export", "mine", "out", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((shown.out + shown.err).split())

    status, text = export()
    assert status == 2 and "--family partwise writes it" in text and not (tmp_path / "out").exists()
    status, text = export("--family", "partwise")
    assert status == 0 and "computes the same logits" in text and "import partwise.formats.wrapper" in text
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# mine" in card and "import partwise.formats.wrapper" in card and "validation loss" in card
    with pytest.raises(ConfigError, match="use the run that it was exported from"):
        partwise.load(tmp_path / "out")
    model, _ = partwise.load("mine")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert error(loaded(tokens()).logits, model(tokens())) <= 1e-6


def test_a_folder_of_pairs_has_its_special_tokens(tmp_path: Path) -> None:
    tokenizer = WithSpecialTokens(CharacterTokenizer("abcdefgh"))
    model = pairs()
    wrapper_folder.save_wrapped(model, tokenizer, tmp_path / "hf", dtype=torch.float64)
    wrapped = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    sources = ["abca", "hg"]
    found = wrapped.generate(**theirs(sources, return_tensors="pt", padding=True), max_new_tokens=12, do_sample=False)
    ours = generate(model, tokenizer, sources, max_new_tokens=12, temperature=0.0, backend="eager")
    assert theirs.batch_decode(found, skip_special_tokens=True) == ours


def test_refusals_are_one_line(tmp_path: Path) -> None:
    model, inputs = build(), tokens(1, 5)
    wrapped = wrapper.wrap(model)
    hole = torch.tensor([[1, 1, 0, 1, 1]])
    for call, message in (
        (lambda: wrapped(inputs, attention_mask=hole), "padding between tokens"),
        (lambda: wrapped(inputs, attention_mask=hole[:, :3]), "one number for each token"),
        (lambda: wrapped(inputs, output_hidden_states=True), "output_hidden_states is not supported"),
        (lambda: wrapped(inputs, position_ids=inputs), "position_ids is not supported"),
        (lambda: wrapped(inputs, past_key_values=transformers.DynamicCache()), "DynamicCache: expected the cache"),
        (lambda: wrapped(inputs, cache=transformers.DynamicCache()), "DynamicCache: expected the cache"),
        (lambda: wrapped.generate(inputs, max_new_tokens=29), "max_length=34 does not fit context_length=32"),
        (lambda: wrapped.resize_token_embeddings(20), "cannot be resized"),
        (lambda: wrapper.PartwiseForSeq2SeqLM(wrapped.config), "load the model with PartwiseForCausalLM"),
        (lambda: wrapper.PartwiseForCausalLM(wrapper.wrap(pairs()).config), "load the model with PartwiseForSeq2SeqLM"),
        (
            lambda: wrapper.PartwiseConfig(model={**SIZES, "ffn": "mine"}),
            "ffn='?mine'?.*import the module that defines it",
        ),
        (lambda: wrapper.PartwiseConfig(model={"d_model": -1}), "d_model=-1"),
        (lambda: wrapper.wrap(pairs())(input_ids=inputs, labels=inputs), "decoder_start_token_id is not set"),
        (lambda: wrapper.wrap(pairs())(input_ids=inputs), "decoder_input_ids and labels are missing"),
        (
            lambda: wrapper.wrap(pairs())(
                input_ids=inputs,
                attention_mask=hole.flip(1) * 0 + torch.tensor([0, 1, 1, 1, 1]),
                decoder_input_ids=inputs,
            ),
            "pad sources on the right",
        ),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="does not support"), warnings.catch_warnings(action="ignore"):
        wrapped.gradient_checkpointing_enable()


def test_a_part_of_ones_own_must_be_imported_first(tmp_path: Path) -> None:
    @partwise.part("halved")
    class Halved(FeedForward):
        """Half a linear layer."""

        def build(self, layer_ctx: Any) -> torch.nn.Module:
            return REGISTRY["ffn"]["relu"]().build(layer_ctx)

    wrapper_folder.save_wrapped(build(ffn="halved"), None, tmp_path / "hf")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf") is not None
    del REGISTRY["ffn"]["halved"]
    with pytest.raises(ConfigError, match="unknown part ffn=halved: import the module that defines it"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = build(ngram_lm={"part": "kneser_ney", "context_tokens": 2})
    model.fit(tokens(1, 11).flatten().numpy())
    wrapper_folder.save_wrapped(model, None, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    whole = load_file(path)
    for change, message in (
        ({"model.head.weight": None}, "missing keys, such as model.head.weight"),
        ({"model.other": torch.zeros(2)}, "unexpected keys, such as model.other"),
        ({"model.counts.text": whole["model.counts.text"] + 200}, "damaged: counts.text"),
    ):
        tensors = {name: tensor for name, tensor in {**whole, **change}.items() if tensor is not None}
        save_file(tensors, path, metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=message):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with pytest.raises(ConfigError, match="is not empty"):
        wrapper_folder.save_wrapped(model, None, tmp_path / "hf")
    path.unlink()
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes(b"not a pickle")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")


def test_a_cache_is_cropped_and_reordered_before_its_first_use() -> None:
    cache = wrapper.PartwiseCache()
    cache.crop(0)
    cache.reorder_cache(torch.tensor([0]))
    assert cache.get_seq_length() == 0
    model, inputs = build(), tokens(1, 8)
    wrapped = wrapper.wrap(model)
    with torch.no_grad():
        wrapped(tokens(1, 8, shift=2), past_key_values=cache)
        cache.crop(-8)
        wrapped(inputs[:, :5], cache=cache)  # by either of its names in transformers
        cache.crop(0)
        wrapped(inputs[:, :3], past_key_values=cache)
        cache.crop(5)
        assert error(wrapped(inputs[:, 5:], past_key_values=cache).logits, model(inputs)[:, 5:]) <= EXACT


def test_generate_of_transformers_leaves_out_ids_without_a_token(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer("abcd")
    model = build()
    wrapper_folder.save_wrapped(model, tokenizer, tmp_path / "hf", dtype=torch.float64)
    wrapped = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    prompt = theirs("abc", return_tensors="pt")
    for beams in ({}, {"num_beams": 3}):
        found = wrapped.generate(**prompt, max_new_tokens=9, do_sample=False, **beams)
        assert len(found[0]) == 12 and found.max() < 4
        if not beams:
            (ours,) = generate(model, tokenizer, ["abc"], max_new_tokens=9, temperature=0.0, backend="eager")
            assert theirs.decode(found[0]) == f"abc{ours}"
