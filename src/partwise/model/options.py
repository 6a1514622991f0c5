"""The options of a model: its sizes and parts."""

from pydantic import Field

from partwise.config import ByLayer, Config, ConfigError
from partwise.parts.attention.multihead import MultiHead
from partwise.parts.contracts import (
    Attention,
    FeedForward,
    Init,
    MultiTokenPrediction,
    NGramEmbeddings,
    NGramLM,
    Norm,
    Positions,
    Residual,
    ShortConv,
)
from partwise.parts.feed_forward.dense import SwiGLU
from partwise.parts.init import GPT2Init
from partwise.parts.mtp import NoMTP
from partwise.parts.ngram_embeddings import NoNGramEmbeddings
from partwise.parts.ngram_lm import NoNGramLM
from partwise.parts.norms import RMSNorm
from partwise.parts.positions.rotary import Rope
from partwise.parts.residual.wirings import PreNorm
from partwise.parts.short_conv import NoShortConv


class ModelOptions(Config):
    """The sizes and parts of a model, as `ModelConfig` has them."""

    # upper limits: a value beyond any machine gets a clear error, not an overflow in torch
    vocab_size: int = Field(65, gt=0, le=2**24)
    """Rows of the embedding table: the number of different tokens, V. Default: that of the data."""
    d_model: int = Field(256, gt=0, le=2**20)
    """Width of the residual stream, D: the numbers that represent one token."""
    n_layers: int = Field(4, ge=0, le=1000)
    """Blocks of the decoder, one after another. 0: an encoder alone, which predicts masked tokens."""
    encoder_layers: int = Field(0, ge=0, le=1000)
    """Blocks of the encoder; above 0, the model is an encoder-decoder, or with `n_layers=0` an encoder alone."""
    context_length: int = Field(512, gt=0, le=2**24)
    """The longest sequence that the model supports, in tokens."""
    positions: Positions = Rope()
    ngram_embeddings: NGramEmbeddings = NoNGramEmbeddings()
    attention: ByLayer[Attention] = MultiHead()
    short_conv: ByLayer[ShortConv] = NoShortConv()
    ffn: ByLayer[FeedForward] = SwiGLU()
    norm: Norm = RMSNorm()
    residual: Residual = PreNorm()
    mtp: MultiTokenPrediction = NoMTP()
    init: Init = GPT2Init()
    ngram_lm: NGramLM = NoNGramLM()
    tie_embeddings: bool = False
    """The head uses the embedding matrix as its own."""
    share_encoder_embeddings: bool = True
    """Encoder and decoder share one embedding table."""
    padding_idx: int | None = Field(None, ge=0)
    """The id of padding in a source; its embedding stays zero unless tied. Default: that of the data."""
    head_bias: bool = False
    """A bias on the logits."""
    logit_softcap: float | None = Field(None, gt=0)
    """c: logits z become c tanh(z / c), so that none exceeds c. Default: no cap."""
    scale_embeddings: bool = False
    """Multiply embeddings by sqrt(d_model) before positions are added."""
    embed_norm: bool = False
    """A norm on the sum of embeddings and positions."""
    embed_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the sum of embeddings and positions."""

    @property
    def encoder_only(self) -> bool:
        """Whether the model is an encoder alone: its input is one text, every position of which sees all others."""
        return self.n_layers == 0

    @property
    def takes_source(self) -> bool:
        """Whether the model is an encoder-decoder, whose input includes a source."""
        return self.encoder_layers > 0 and self.n_layers > 0


def check_encoder_only(config: ModelOptions) -> None:
    """Raise ConfigError for a model without layers, and for parts that only a decoder can have."""
    if not config.encoder_layers:
        raise ConfigError(
            "n_layers=0 and encoder_layers=0 leave no layers: set n_layers, or encoder_layers for an encoder"
        )
    for part, neutral in ((config.mtp, NoMTP()), (config.ngram_lm, NoNGramLM())):
        if part.name != neutral.name:
            raise ConfigError(
                f"{part.family}={part.name} predicts tokens from earlier ones, but n_layers=0 is an encoder alone: "
                f"set {part.family}={neutral.name}"
            )
