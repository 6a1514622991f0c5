"""Latent attention: keys and values made from one narrow vector per place, which is all that is remembered."""

import math

import torch
from pydantic import Field
from torch import Tensor

from partwise.config import ConfigError, part
from partwise.parts.families import Attention, AttentionLayer, Flow, Heads, Site
from partwise.parts.layers import FusedLinear, GroupRMSNorm, linear
from partwise.parts.memories import Places
from partwise.parts.scores import Scores
from partwise.parts.sight import Sight


@part("latent")
class Latent(Attention):
    """out(concat_h softmax((q_h k_h^T + q'_h k'^T) scale) v_h), k_h = K_h c, v_h = V_h c, c = norm(down(x)).

    Multi-head latent attention, DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434. c has `kv_rank` numbers. q'_h and k',
    which all heads share, have `rope_dim`: rotary positions turn them alone. Under positions of another kind they are
    there as well, and nothing turns them. With `q_rank` queries, too, come from a normalised latent of that width. While
    generating, c and k' are remembered; for few queries K_h is folded into q_h and V_h into the output, which is the same
    and spares making all keys and values anew.
    """

    n_heads: int = Field(4, gt=0, le=2**16)
    head_dim: int | None = Field(None, gt=0, le=2**16)  # of q_h and k_h; d_model / n_heads where not given
    rope_dim: int | None = Field(None, gt=0, le=2**16)  # half of head_dim where not given
    value_dim: int | None = Field(None, gt=0, le=2**16)  # head_dim where not given
    kv_rank: int | None = Field(None, gt=1, le=2**20)  # 4 head_dim where not given; normalised, 1 would be but a sign
    q_rank: int | None = Field(None, gt=1, le=2**20)  # queries come from x where not given
    eps: float = Field(1e-6, gt=0)  # of the norms
    scale: float | None = Field(None, gt=0)  # 1 / sqrt(head_dim + rope_dim) where not given
    dropout: float = Field(0.0, ge=0, lt=1)  # on the attention weights

    def heads(self, d_model: int) -> Heads:
        """Of the part that positions turn."""
        plain = self.plain_width(d_model)
        rope_dim = self.rope_dim or max(2, plain // 4 * 2)
        if rope_dim % 2:
            raise ConfigError(f"attention.rope_dim={rope_dim} is odd, and what turns are pairs: choose an even number")
        return Heads(self.n_heads, self.n_heads, rope_dim)

    def plain_width(self, d_model: int) -> int:
        if self.head_dim is None and d_model % self.n_heads:
            raise ConfigError(
                f"attention.n_heads={self.n_heads} does not divide d_model={d_model}: "
                "choose a divisor, or give attention.head_dim"
            )
        return self.head_dim or d_model // self.n_heads

    def score_width(self, d_model: int) -> int:
        return self.plain_width(d_model) + self.heads(d_model).width

    def build(self, site: Site) -> AttentionLayer:
        plain, turned = self.plain_width(site.d_model), self.heads(site.d_model).width
        scale = self.scale or site.score_scale or 1 / math.sqrt(plain + turned)
        return LatentAttention(
            site.d_model,
            self.n_heads,
            (plain, turned, self.value_dim or plain),
            self.kv_rank or 4 * plain,
            self.q_rank,
            self.eps,
            Scores(scale, None, 0, self.dropout),
        )


class LatentAttention(AttentionLayer):
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        widths: tuple[int, int, int],  # of a head's plain part, of its turned part, of its values
        rank: int,
        q_rank: int | None,
        eps: float,
        scores: Scores,
    ) -> None:
        super().__init__()
        self.n_heads, self.widths, self.rank, self.scores = n_heads, widths, rank, scores
        plain, turned, value = widths
        queries = n_heads * (plain + turned)
        first = {"q": queries} if q_rank is None else {"q_down": q_rank}
        self.down = FusedLinear(
            d_model,
            first | {"kv_down": rank, "k_rope": turned},
            False,
            {"q": "score", "q_down": "hidden", "kv_down": "hidden", "k_rope": "score"},
        )
        self.down.join(self, "down")
        self.q_norm = None if q_rank is None else GroupRMSNorm(q_rank, eps, affine=True)
        self.q = None if q_rank is None else linear(q_rank, queries, False, "score")
        self.kv_norm = GroupRMSNorm(rank, eps, affine=True)
        self.up = FusedLinear(rank, {"k": n_heads * plain, "v": n_heads * value}, False, {"k": "score", "v": "hidden"})
        self.up.join(self, "up")
        self.out = linear(n_heads * value, d_model, False, "output")

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        q, c, k_rope = self.down(x)
        if self.q is not None and self.q_norm is not None:
            q = self.q(self.q_norm(q))
        q, q_rope = self.split(q).split(self.widths[:2], dim=-1)  # (B, H, T, E) of both parts
        q_rope = flow.positions.on_heads(q_rope, flow.ids)
        k_rope = flow.positions.on_heads(k_rope.unsqueeze(1), flow.ids)  # (B, 1, T, E): all heads share it
        latents = torch.cat((self.kv_norm(c).unsqueeze(1), k_rope), dim=-1)  # (B, 1, T, rank + E)
        state = flow.state(self)
        if state is not None:
            (latents,) = state.append(latents)  # (B, 1, S, rank + E)
        sight = flow.sight(x, latents.shape[2])
        folded = state is not None and self.folding_is_less(x.shape[1], latents.shape[2])
        y = (self.folded if folded else self.unfolded)(q, q_rope, latents, sight)  # (B, H, T, W)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H * W) -> (B, T, D)

    def unfolded(self, q: Tensor, q_rope: Tensor, latents: Tensor, sight: Sight) -> Tensor:
        """The equation: keys and values of every head."""
        c, k_rope = latents.split((self.rank, self.widths[1]), dim=-1)
        k, v = map(self.split, self.up(c.squeeze(1)))
        k = torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1)
        return self.scores(torch.cat((q, q_rope), dim=-1), k, v, sight)

    def folded(self, q: Tensor, q_rope: Tensor, latents: Tensor, sight: Sight) -> Tensor:
        """q_h (K_h c) = (q_h K_h) c, and the sum of weights times V_h c is V_h times the sum of weights times c."""
        keys, values = (
            piece.unflatten(0, (self.n_heads, -1)) for piece in self.up.weight.split([*self.up.sizes.values()])
        )
        q = torch.cat((q @ keys, q_rope), dim=-1)  # (B, H, T, rank + E)
        y = self.scores(q, latents, latents[..., : self.rank], sight)  # (B, H, T, rank)
        return y @ values.transpose(1, 2)

    def folding_is_less(self, queries: int, keys: int) -> bool:
        """Whether it takes fewer products: it spares maps over all places, for wider scores and sums."""
        plain, _, value = self.widths
        return queries * (self.rank * (plain + value) + keys * (2 * self.rank - plain - value)) < (
            keys * self.rank * (plain + value)
        )

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, T, H * E) -> (B, H, T, E)

    def new_state(self, batch: int, length: int, like: Tensor) -> Places:
        return Places(batch, length, [(1, self.rank + self.widths[1])], like)

    def use_path(self, path: str) -> None:
        self.scores.use_path(path)
