"""A printed model has the layers that compute something, and no others."""

import partwise


def shown(*words: str) -> str:
    return str(partwise.Transformer(partwise.preset("mingpt", "n_layers=2", *words)))


def test_layers_that_compute_nothing_are_not_printed() -> None:
    text = shown("vocab_size=19", "residual.dropout=0")
    assert text.startswith("Transformer(\n  ") and text.splitlines()[1].endswith(" parameters")
    for absent in ("Identity", "MTP", "mixing", "lookup", "counts", "ahead", "Dropout", "dropouts", "q_norm"):
        assert absent not in text
    for present in (
        "(0-1): 2 x Block(",
        "LearnedTable(128, 96)",
        "(scores): AttentionCore()",
        "(up): Linear(",
        "(head): Linear(",
    ):
        assert present in text
    assert "PositionLayer" not in shown("positions=none")


def test_layers_that_compute_something_are_printed() -> None:
    text = shown("residual.dropout=0.1", "short_conv=conv", "mtp=heads", "attention.qk_norm=head", "embed_norm=true")
    for present in (
        "(mixing): ",
        "(ahead): ",
        "(q_norm): ",
        "(embed_norm): ",
        "(dropouts): ModuleDict(",
        "Dropout(p=0.1)",
    ):
        assert present in text
