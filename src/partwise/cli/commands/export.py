"""`export` and `import`: models as folders of Hugging Face's `transformers`."""

import importlib.util
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from partwise.baselines.scale import place_loss
from partwise.cli.terminal import console
from partwise.comparison.results import Results
from partwise.config import ConfigError, did_you_mean
from partwise.config.yaml import show
from partwise.evaluate.references import dataset_references
from partwise.files import refuse_links
from partwise.formats.huggingface.family import Family
from partwise.formats.huggingface.reading import is_hf_folder, stored_dtype
from partwise.formats.huggingface.writing import check_new, write_hf_folder
from partwise.model import Transformer
from partwise.run_names import check_run_name, default_run_name
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig
from partwise.train.imported import import_hf_folder
from partwise.train.metrics import read_metrics
from partwise.train.run_folder import FOLDERS
from partwise.train.run_metadata import load_run, open_run

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
OLDEST = (4, 56)
"""The oldest supported release of `transformers`, as in the extra `hf` of pyproject.toml."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
"""Tolerance of the largest difference of logits, relative to their largest magnitude if that exceeds 1."""


def export_run(
    name: str, folder: Path, to: str, family: str | None, dtype: str | None, check: bool, command: str
) -> None:
    """Write a run in another program's format. Raises ConfigError."""
    if to != "hf":
        raise ConfigError(f"--to {to}: unknown format{did_you_mean(to, ['hf'])}")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: unknown precision{did_you_mean(dtype, DTYPES)}")
    check_new(folder)
    source, config, metadata = open_run(name)
    model, tokenizer = load_run(source, config, metadata)
    model.check_generates()
    precision = DTYPES[dtype] if dtype else source_dtype(source, metadata)
    text = model_card(source, config, metadata, command)
    if family == "partwise":
        export_wrapped(model, tokenizer, folder, precision, text.replace("FAMILY", "partwise"), check)
        return
    said: list[str] = []
    chosen = write_hf_folder(
        model,
        tokenizer,
        folder,
        family_name=family,
        dtype=precision,
        card=lambda family: text.replace("FAMILY", family.title),
        check=lambda draft, family: said.extend([compare_logits(model, draft, precision, family)] if check else []),
    )
    console.print(f"{folder}: a {chosen.title} model ({chosen.architecture}) in {str(precision)[6:]}", markup=False)
    for line in said:
        console.print(line, markup=False)
    console.print(
        f'load it: transformers.AutoModelForCausalLM.from_pretrained("{folder}")', markup=False, soft_wrap=True
    )


def export_wrapped(
    model: Transformer, tokenizer: Tokenizer, folder: Path, dtype: torch.dtype, card: str, check: bool
) -> None:
    """Write a folder that needs partwise. Raises ConfigError."""
    if missing := missing_transformers():
        raise ConfigError(f"--family partwise needs transformers: {missing}")
    import transformers

    from partwise.formats.wrapper.folder import save_wrapped

    transformers.logging.disable_progress_bar()
    said: list[str] = []
    check = check and model.encoder is None
    save_wrapped(
        model,
        tokenizer,
        folder,
        dtype=dtype,
        card=card,
        check=lambda draft: said.extend([compare_logits(model, draft, dtype)] if check else []),
    )
    console.print(f"{folder}: a model in {str(dtype)[6:]} for programs that have partwise", markup=False)
    for line in said:
        console.print(line, markup=False)
    auto = "AutoModelForCausalLM" if model.encoder is None else "AutoModelForSeq2SeqLM"
    console.print(
        f'load it: import partwise.formats.wrapper; transformers.{auto}.from_pretrained("{folder}")',
        markup=False,
        soft_wrap=True,
    )


def source_dtype(source: Path, metadata: dict[str, Any]) -> torch.dtype:
    """The precision of the weights that were imported and not trained since, else float32."""
    if is_hf_folder(source):
        return stored_dtype(source)
    return DTYPES.get(metadata.get("imported", {}).get("dtype"), torch.float32)


def missing_transformers(family: Family | None = None) -> str | None:
    """Why the installed `transformers` cannot load a model of this family, and what to do; None if it can."""
    if importlib.util.find_spec("transformers") is None:
        return "it is not installed: `pip install 'partwise[hf]'`"
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = tuple(int(number) for number in re.findall(r"\d+", transformers.__version__)[:2])
    if found < OLDEST:
        return f"{transformers.__version__} is older than {OLDEST[0]}.{OLDEST[1]}: `pip install --upgrade transformers`"
    if family is not None and family.model_type not in CONFIG_MAPPING_NAMES:
        return f"{transformers.__version__} has no {family.title} models: `pip install --upgrade transformers`"
    return None


@torch.no_grad()
def compare_logits(model: Transformer, folder: Path, dtype: torch.dtype, family: Family | None = None) -> str:
    """Compare the logits of a folder in `transformers` with the model's; returns what to print.

    Raises ConfigError if they differ.
    """
    if missing := missing_transformers(family):
        return f"not compared with transformers: {missing}"
    import transformers

    tokens = torch.randint(0, model.config.vocab_size, (1, min(64, model.config.context_length)))
    with console.status("comparing with transformers") if console.is_terminal else nullcontext():
        transformers.logging.disable_progress_bar()
        try:
            theirs = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="eager",  # the others of some releases leave out soft-caps
            )
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"transformers {transformers.__version__} cannot load this model, so nothing was written: "
                f"{' '.join(str(error).split())[:200]}; upgrade transformers, or write it unchecked with --no-check"
            ) from None
        difference = (theirs.eval()(tokens).logits - model.float()(tokens)).abs().max().item()
    del theirs  # Windows does not remove a folder of which a file is mapped
    largest = max(1.0, model(tokens).abs().max().item())
    if not difference <= TOLERANCE[dtype] * largest:
        raise ConfigError(
            f"transformers {transformers.__version__} computes logits that differ by up to {difference:.3g}, so nothing "
            "was written: report this configuration as a bug"
        )
    return f"transformers {transformers.__version__} computes the same logits to within {difference:.1g}"


def model_card(source: Path, config: RunConfig, metadata: dict[str, Any], command: str) -> str:
    """README.md of an exported model: data, scores beside the references, verdicts and commands."""
    lines = [
        "---",
        "library_name: transformers",
        "tags: [partwise]",
        "---",
        f"# {source.resolve().name}",
        "",
        f"A FAMILY model with {config.model.parameters():,} parameters, trained and exported with partwise.",
        "",
    ]
    if metadata.get("imported"):
        lines += ["It was imported, not trained here; its publisher's card applies.", ""]
    else:
        kind, *options = config.data.to_stored().items()
        data = " ".join([str(kind[1]), *(f"{name}={show(value)}" for name, value in options)])
        lines += [
            "## Data and scores",
            "",
            f"Trained on `{data}` with the tokenizer `{config.tokenizer.name}`.",
            "",
        ]
        lines += [*scores(source, config), *verdicts(source)]
    lines += ["## Commands", "", "```", *filter(None, [" ".join(metadata.get("command", []))]), command, "```", ""]
    return "\n".join(lines)


def scores(source: Path, config: RunConfig) -> list[str]:
    """The last evaluation, beside the n-gram references."""
    evaluations = [line for line in read_metrics(source) if line["kind"] == "evaluation"]
    if not evaluations:
        return []
    last = evaluations[-1]
    with console.status("fitting the n-gram references") if console.is_terminal else nullcontext():
        references = dataset_references(config.prepare())
    loss = last["validation"]
    rows = [f"| validation loss after {last['step']:,} steps | {loss:.4f} |"]
    rows += [f"| {n}-gram reference | {reference:.4f} |" for n, reference in references["ngrams"]]
    place = place_loss(loss, dict(references["ngrams"]))
    return ["| | nats per token |", "|---|---|", *rows, "", f"The validation loss is {place}.", ""]


def verdicts(source: Path) -> list[str]:
    """The verdicts of the comparison that the run belongs to."""
    parents = source.resolve().parents
    path = parents[2] / "results.json" if len(parents) > 2 else source / "results.json"
    if not path.is_file():
        return []
    try:
        texts = [claim.effect.sentence for claim in Results.from_json(path).claims if claim.role == "claim"]
    except ConfigError as error:  # damaged, or of another version: no reason to keep the model
        return [f"The verdicts of its comparison could not be read: {error}.", ""]
    return ["It was trained in a comparison, with these verdicts:", "", *(f"- {text}" for text in texts), ""]


def import_folder(folder: Path, name: str | None) -> None:
    """Write the model of a folder as a run below runs/."""
    if not is_hf_folder(folder):
        raise ConfigError(
            f"{folder} is not a folder of transformers with a config.json: give a folder written by transformers"
        )
    target = Path("runs") / (check_run_name(name) if name else default_run_name([str(folder.resolve())]))
    refuse_links(target, FOLDERS)
    with console.status("importing") if console.is_terminal else nullcontext():
        config = import_hf_folder(folder, target)
    console.print(f"{target}: {config.model.parameters():,} parameters", markup=False)
    console.print(f"generate text: partwise generate {target} --prompt ...", markup=False, soft_wrap=True)
    console.print(f"its loss on your text: partwise eval {target} --data FILE", markup=False, soft_wrap=True)
