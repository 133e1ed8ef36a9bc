"""Mixers other than attention, the baselines; one file per mixer."""

from longctx.mixers.conv import CausalConv
from longctx.mixers.linear import LinearAttention
from longctx.mixers.lstm import LSTM
from longctx.mixers.transformer_xl import TransformerXL

__all__ = ["LSTM", "CausalConv", "LinearAttention", "TransformerXL"]
