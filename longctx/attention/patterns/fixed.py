"""Fixed (block-sparse) attention: own block, summaries of earlier ones (Child et al. 2019, 4.3)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query sees what precedes it in its block, and the last columns of every earlier block."""

    block: int = 128
    """Length of a block in tokens."""
    summary: int = 8
    """How many columns at the end of a block all later blocks see; 0 keeps the blocks apart."""

    paper = "Child et al. 2019"

    def __post_init__(self):
        if self.block < 1:
            raise ValueError(f"Fixed needs a block of at least 1 token, not {self.block}")
        if not 0 <= self.summary <= self.block:
            raise ValueError(
                f"Fixed needs a summary of 0 to {self.block} tokens, its block, not {self.summary}"
            )

    @classmethod
    def small(cls):
        return cls(block=8, summary=2), cls(block=6, summary=0)

    @property
    def window(self) -> int | None:
        return None if self.summary else self.block

    def allows(self, q_pos, k_pos):
        same_block = k_pos >= q_pos - q_pos % self.block
        in_summary = k_pos % self.block >= self.block - self.summary
        return (k_pos <= q_pos) & (same_block | in_summary)

    def classify(self, q_first, q_last, k_first, k_last):
        if k_first > q_last:
            return Tile.SKIP
        plain = self.block - self.summary
        offset = k_first % self.block
        next_summary = k_first + max(plain - offset, 0)
        next_plain = k_first if offset < plain else k_first + self.block - offset
        summarised = self.summary > 0 and next_summary <= k_last
        if k_last // self.block < q_first // self.block and not summarised:
            return Tile.SKIP
        all_summary = plain == 0 or next_plain > k_last
        same_block = next_plain // self.block == q_last // self.block
        return Tile.FULL if k_last <= q_first and (all_summary or same_block) else Tile.PARTIAL
