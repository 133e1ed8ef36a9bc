"""Mixers other than attention, the baselines; one file per mixer."""

from longctx.mixers.conv import CausalConv
from longctx.mixers.linear import LinearAttention
from longctx.mixers.lsh import LSH
from longctx.mixers.lstm import LSTM
from longctx.mixers.memorizing import Memorizing
from longctx.mixers.routing import Routing
from longctx.mixers.transformer_xl import TransformerXL

__all__ = ["LSH", "LSTM", "CausalConv", "LinearAttention", "Memorizing", "Routing", "TransformerXL"]
