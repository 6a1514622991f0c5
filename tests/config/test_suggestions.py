"""The field's words lead to the names here; whatever a message suggests exists."""

import re

import pytest
import typer

import partwise.presets  # noqa: F401  (registers the parts)
from partwise.cli import app
from partwise.config import REGISTRY, ConfigError
from partwise.config.overrides import flatten, parse_overrides
from partwise.config.parts import find_part, option_paths
from partwise.config.suggestions import meanings, synonyms
from partwise.inspection.subject import find_subject
from partwise.train.config import default_settings, preset_settings, run_config

DOCUMENTS = re.findall(
    r"\S+",
    """
    n_embd block_size n_layer n_head bias dropout vocab_size d_model n_heads d_ff max_len num_heads num_layers max_seq_len
    rope_theta hidden_dim embed_size context_size head_size batch_size max_iters eval_interval learning_rate eval_iters
    device seed norm_first dim_feedforward activation padding_idx eps seq_len warmup weight_decay lr steps d_k attn_dropout
    rsid_dropout positional_encoding beta1 beta2 grad_clip weight_tying gradient_accumulation_steps compile dtype window
    theta hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings
    rms_norm_eps layer_norm_epsilon tie_word_embeddings hidden_act attention_dropout resid_pdrop embd_pdrop attn_pdrop
    head_dim sliding_window final_logit_softcapping attn_logit_softcapping initializer_range partial_rotary_factor
    rope_scaling per_device_train_batch_size max_grad_norm num_train_epochs max_steps warmup_steps lr_scheduler_type
    label_smoothing_factor adam_beta1 min_lr
    """,
)
"""Settings of tutorials, of small trainers and of transformers."""

FORMER = re.findall(
    r"\S+",
    """
    max_len context accumulate clip tied shared_table head_softcap fused fraction start final adam_factor redraw loss_on
    balance tail ahead lookup counts mixing ladder control-null control-planted confirm length beams together
    """,
)
NOW = re.findall(
    r"\S+",
    """
    context_length seq_len grad_accumulation grad_clip tie_embeddings share_encoder_embeddings logit_softcap fused_qkv
    partial_rotary_factor init_value min_lr_ratio adamw_lr_ratio reinitialize mtp ngram_embeddings ngram_lm short_conv
    backend
    """,
)
PARTS = re.findall(
    r"\S+",
    """
    gqa mqa mha latent rotary prenorm pre-norm RMS_norm ngrams shift multi-token_prediction kneser_ney conv heads original
    """,
)


def flags() -> set[str]:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    return {flag for command in commands for param in command.get_params(typer.Context(command)) for flag in param.opts}


SETTINGS = {".".join(path) for path, _ in flatten(default_settings())} | {*default_settings()}
OPTIONS = {each.rpartition(" ")[2] for each in option_paths()}


@pytest.mark.parametrize("kind", ["settings", "parts"])
def test_every_word_of_the_table_leads_to_something_that_exists(kind: str) -> None:
    known_flags = flags()
    for word, meant in synonyms(kind).items():
        assert re.fullmatch("[a-z0-9_]+", word) and meant, word
        for target in " ".join(meant).split():
            key, equals, name = target.partition("=")
            exists = target in known_flags or target in ("exact_match", "char_accuracy")
            exists |= name in REGISTRY[key] if equals and key in REGISTRY else key in SETTINGS | OPTIONS
            assert exists, (word, target)


def test_the_words_of_the_field_lead_somewhere() -> None:
    settings = [*SETTINGS, *option_paths()]
    words = [word for word in (*DOCUMENTS, *FORMER, *NOW) if word not in default_settings()]
    assert len(words) > 100 and not [word for word in words if not meanings(word, "settings", settings)]
    names = [word for word in PARTS if not any(word in recipes for recipes in REGISTRY.values())]
    assert names and not [word for word in names if not meanings(word, "parts")]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        (
            "dropout=0.1",
            "; did you mean residual.dropout=0.1, attention.dropout=0.1, ffn.hidden_dropout, ffn.output_dropout or",
        ),
        ("n_heads=4", "unknown option 'n_heads'; did you mean attention.n_heads=4?"),
        ("batch_size=8", "; did you mean train.batch_size=8?"),
        ("lr=1e-3", "; did you mean train.lr=0.001?"),
        ("weight_tying=true", "; did you mean tie_embeddings?"),
        ("N_LAYER=3", "; did you mean n_layers?"),
        ("theta=500", "; did you mean positions=rope positions.theta=500?"),
        ("ffn.dropout=0.1", "unknown option 'ffn.dropout'; did you mean ffn.hidden_dropout or ffn.output_dropout?"),
        ("ffn.d_ff=300", "; did you mean ffn.hidden?"),
        ("train.learning_rate=1", "unknown option 'train.learning_rate'; did you mean train.lr?"),
        ("attention=gqa", "unknown part attention=gqa; did you mean attention=multihead attention.n_kv_heads?"),
        ("norm=pre", "unknown part norm=pre; did you mean residual=pre?"),
    ],
)
def test_messages_name_what_is_meant(word: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        run_config("mingpt", word, data="arithmetic")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--seed", "5"], "'--seed' is not an override: write train.seed=5"),
        (["--steps", "100"], "'--steps' is not an override: write train.steps=100"),
        (["ffn=relu", "--epochs", "3"], "'--epochs' is not an override: write train.steps"),
        (["--ladder"], "'--ladder' is not an override: write --cumulative"),
        (
            ["--frobnicate", "3"],
            "'--frobnicate' is not an override: write KEY=VALUE, as in ffn=swiglu or train.lr=1e-3",
        ),
    ],
)
def test_options_that_are_settings(words: list[str], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(words)
    assert str(caught.value) == hint


def test_the_case_of_a_name_does_not_matter() -> None:
    made = run_config("MinGPT", "ffn=SwiGLU", "norm=RMSNorm", data="Arithmetic")
    assert made == run_config("mingpt", "ffn=swiglu", "norm=rmsnorm", data="arithmetic")
    assert made.model.ffn == find_part("ffn", "SWIGLU")() and made.model.ffn.name == "swiglu"
    assert preset_settings("LLAMA") == preset_settings("llama")
    assert find_subject("MINGPT", []).name == "mingpt"
