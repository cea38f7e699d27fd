"""BERT with a linear head on its last hidden layer, as a plain torch module with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["SIZES", "Bert", "BertSize", "seeded"]


@dataclass(frozen=True, slots=True)
class BertSize:
    """Dimensions of a BERT; `words` is the size of its vocabulary."""

    layers: int
    hidden: int
    heads: int
    inner: int
    words: int
    positions: int = 512


SIZES = {
    # BERT-large, 334 million parameters: 340 with the pooler, the second sentence and the vocabulary's head, which a
    # score does not need.
    "large": BertSize(layers=24, hidden=1024, heads=16, inner=4096, words=30522),
    "base": BertSize(layers=12, hidden=768, heads=12, inner=3072, words=30522),
    # The smallest published sizes, with the vocabulary of the bundled texts.
    "mini": BertSize(layers=4, hidden=256, heads=4, inner=1024, words=4000),
    "tiny": BertSize(layers=2, hidden=128, heads=2, inner=512, words=4000),
}


class Layer(nn.Module):
    """Layer of the encoder: attention and two linear layers, each with a residual and normalization."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.width = size.hidden // size.heads
        self.attend = nn.Linear(size.hidden, 3 * size.hidden)
        self.attended = nn.Linear(size.hidden, size.hidden)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.inner = nn.Linear(size.hidden, size.inner)
        self.outer = nn.Linear(size.inner, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        rows, tokens = x.size(0), x.size(1)
        parts = self.attend(x).view(rows, tokens, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], keep)
        found = found.transpose(1, 2).reshape(rows, tokens, self.heads * self.width)
        x = self.attention_norm(x + self.attended(found))
        y: torch.Tensor = self.norm(x + self.outer(functional.gelu(self.inner(x))))
        return y


class Bert(nn.Module):
    """Score of texts: ids and a mask (0 at padding) of shape (rows, tokens) to FP32 of shape (rows, 1)."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.kinds = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.hidden, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = self.positions.weight[: ids.size(1)] + self.kinds.weight[0]
        x = self.norm(self.words(ids) + places)
        keep = (mask != 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, keep)
        score: torch.Tensor = self.head(x[:, 0]).float()  # of the token [CLS]
        return score


def seeded(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Bert:
    """Return a BERT of a size of `SIZES`, with the random initial weights of BERT's training."""
    generator = torch.Generator().manual_seed(seed)
    module = Bert(SIZES[name])
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(0.0, 0.02, generator=generator)
            if isinstance(part, nn.Linear):
                part.bias.zero_()
    return module.to(dtype).eval()
