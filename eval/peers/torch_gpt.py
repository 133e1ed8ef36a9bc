"""A GPT in plain PyTorch: learned positions, fused attention, a cache for generation.

It has no relative term: `scaled_dot_product_attention` takes one only as an [n, n] bias. So this is
the speed of PyTorch at its best, and of a simpler model.
"""

# pyright: reportMissingImports=false

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from eval.peers import PeerConfig

Cache = tuple[Float[Tensor, "batch heads cap dim"], Float[Tensor, "batch heads cap dim"]]


class Attention(nn.Module):
    """Causal attention of new tokens to themselves, or of one token to a cache."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.model, 3 * config.model)
        self.out = nn.Linear(config.model, config.model)

    def forward(
        self, x: Float[Tensor, "batch len model"], start: int = 0, cache: Cache | None = None
    ) -> Float[Tensor, "batch len model"]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is None:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            stop = start + x.shape[1]
            keys, values = cache
            keys[:, :, start:stop], values[:, :, start:stop] = k, v
            y = functional.scaled_dot_product_attention(q, keys[:, :, :stop], values[:, :, :stop])
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.model)
        self.attention = Attention(config)
        self.hidden_norm = nn.LayerNorm(config.model)
        self.up = nn.Linear(config.model, config.hidden)
        self.down = nn.Linear(config.hidden, config.model)

    def forward(
        self, x: Float[Tensor, "batch len model"], start: int = 0, cache: Cache | None = None
    ) -> Float[Tensor, "batch len model"]:
        x = x + self.attention(self.attention_norm(x), start, cache)
        return x + self.down(functional.gelu(self.up(self.hidden_norm(x))))


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.model)
        self.positions = nn.Embedding(config.length, config.model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.model)
        self.logits = nn.Linear(config.model, config.vocab, bias=False)

    def forward(
        self, tokens: Int[Tensor, "batch len"], start: int = 0, caches: list[Cache] | None = None
    ) -> Float[Tensor, "batch len vocab"]:
        """Return the logits of whole sequences, or of one new token each if there are caches."""
        x = self.tokens(tokens) + self.positions.weight[start : start + tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, start, caches[i] if caches else None)
        return self.logits(self.norm(x))


class TorchGPT:
    """The peer: a model, its optimizer and random data."""

    def __init__(self, config: PeerConfig) -> None:
        torch.manual_seed(config.seed)
        torch.set_num_threads(config.threads)
        self.config = config
        self.network = Transformer(config)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-4, fused=True)

    def train_step(self) -> float:
        config = self.config
        tokens = torch.randint(config.vocab, (config.batch, config.length + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bfloat16):
            logits = self.network(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def empty_caches(self, batch: int, length: int) -> list[Cache]:
        """Return room for the keys and values of `length` tokens, for each layer."""
        shape = (batch, self.config.heads, length, self.config.dim)
        return [(torch.empty(shape), torch.empty(shape)) for _ in range(self.config.layers)]

    @torch.inference_mode()
    def generate(self, batch: int, length: int) -> Int[Tensor, "batch len"]:
        if length > self.config.length:
            raise ValueError(f"length={length} exceeds the {self.config.length} learned positions")
        tokens = torch.empty(batch, length, dtype=torch.long)
        tokens[:, 0] = torch.randint(self.config.vocab, (batch,))
        caches = self.empty_caches(batch, length)
        for i in range(length - 1):
            logits = self.network(tokens[:, i : i + 1], i, caches)[:, -1]
            tokens[:, i + 1] = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return tokens
