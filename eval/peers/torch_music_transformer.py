"""A Music Transformer in plain PyTorch, in the way that public rebuilds compute it.

Huang et al. 2018 (https://arxiv.org/abs/1809.04281): the score of a query and a key has a term
from a learned vector of their distance, and the skew finds these terms in one matrix product
without an [n, n, dim] tensor. What stays is quadratic: products, masks, scores and probabilities
are [batch, heads, n, n], and there is no cache, so a new token costs a pass over all before it.
All but the attention equals `torch_gpt`.
"""

# pyright: reportMissingImports=false

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from eval.peers import PeerConfig


def skew(
    by_distance: Float[Tensor, "batch heads len len"],
) -> Float[Tensor, "batch heads len len"]:
    """Turn columns that count up to distance 0 into columns of keys; above the diagonal is junk.

    Column c of row i holds distance len - 1 - c, so it belongs to key c - (len - 1 - i). A column
    of zeros on the left and rows shorter by one move row i by just that.
    """
    batch, heads, n, _ = by_distance.shape
    return functional.pad(by_distance, (1, 0)).reshape(batch, heads, n + 1, n)[:, :, 1:]


class Attention(nn.Module):
    """Causal attention with one vector per head and distance."""

    causal: Tensor

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.model, 3 * config.model)
        self.out = nn.Linear(config.model, config.model)
        # The last row is distance 0.
        table = torch.randn(config.heads, config.length, config.dim) * config.dim**-0.5
        self.distances = nn.Parameter(table)
        ones = torch.ones(config.length, config.length, dtype=torch.bool)
        self.register_buffer("causal", ones.tril(), persistent=False)

    def probabilities(
        self, q: Float[Tensor, "batch heads len dim"], k: Float[Tensor, "batch heads len dim"]
    ) -> Float[Tensor, "batch heads len len"]:
        n = q.shape[2]
        causal: Bool[Tensor, "len len"] = self.causal[:n, :n]
        relative = skew(q @ self.distances[:, -n:].mT)
        scores = (q @ k.mT + relative) * q.shape[-1] ** -0.5
        return scores.masked_fill(~causal, -torch.inf).softmax(-1)

    def forward(self, x: Float[Tensor, "batch len model"]) -> Float[Tensor, "batch len model"]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.probabilities(q, k) @ v
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

    def forward(self, x: Float[Tensor, "batch len model"]) -> Float[Tensor, "batch len model"]:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.hidden_norm(x))))


class Transformer(nn.Module):
    """Tokens to logits; place enters through the relative term alone."""

    def __init__(self, config: PeerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.model)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.model)
        self.logits = nn.Linear(config.model, config.vocab, bias=False)

    def forward(self, tokens: Int[Tensor, "batch len"]) -> Float[Tensor, "batch len vocab"]:
        return self.logits(self.norm(self.blocks(self.tokens(tokens))))


class TorchMusicTransformer:
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

    @torch.inference_mode()
    def generate(self, batch: int, length: int) -> Int[Tensor, "batch len"]:
        if length > self.config.length:
            raise ValueError(f"length={length} exceeds the {self.config.length} distances")
        tokens = torch.empty(batch, length, dtype=torch.long)
        tokens[:, 0] = torch.randint(self.config.vocab, (batch,))
        for i in range(1, length):
            logits = self.network(tokens[:, :i])[:, -1]
            tokens[:, i] = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        return tokens
