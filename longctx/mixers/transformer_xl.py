"""Transformer-XL: attention whose training reaches back over earlier batches."""

from dataclasses import dataclass
from typing import ClassVar

from flax import nnx
from jax.typing import DTypeLike

from longctx.attention.cache import KVCache
from longctx.attention.layer import Attention, AttentionLayer
from longctx.attention.patterns import Pattern, Recurrent
from longctx.attention.positions import Position, RelativeEmbedding


@dataclass(frozen=True)
class TransformerXL(Attention):
    """Attention that keeps keys and values from batch to batch, without their gradient.

    Train it on `Streamed` data, where a row goes on with its document in the next batch; on others
    a batch begins with an empty cache. With `pattern=Local(n)` a query sees its n most recent keys
    wherever segments end.
    """

    paper: ClassVar[str] = "Dai et al. 2019"

    position: Position = RelativeEmbedding(max_distance=512)
    """How place enters the score; the paper's is relative too."""
    pattern: Pattern = Recurrent()
    """Which pairs of tokens may talk; it must end somewhere, since the cache does."""

    def __post_init__(self):
        super().__post_init__()
        if self.pattern.window is None or self.pattern.prefix != 0:
            raise ValueError(
                f"TransformerXL keeps a cache of fixed size, but {self.pattern} has no window or "
                "sees ahead: take Recurrent(segment, memory) or Local(size)"
            )

    @classmethod
    def small(cls):
        table = RelativeEmbedding(max_distance=9)
        return (cls(heads=4, kv_heads=2, position=table, pattern=Recurrent(6, 8)),)

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "TransformerXLLayer":
        return TransformerXLLayer(self, model, dtype, rngs)


class TransformerXLLayer(AttentionLayer):
    """The layer of a `TransformerXL` config; its state is a `KVCache`, in training too."""

    def training_state(self, batch: int) -> KVCache:
        window, axes = self.config.pattern.window, self.config.position.axes
        return KVCache.empty(
            batch, self.kv_heads, 0, self.dim, self.dtype, window, axes, packed=True
        )
