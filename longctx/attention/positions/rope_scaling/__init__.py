"""How RoPE reaches further than it was trained; one file per way."""

from longctx.attention.positions.rope_scaling.base import RopeScaling
from longctx.attention.positions.rope_scaling.dynamic_ntk import DynamicNTK
from longctx.attention.positions.rope_scaling.linear import LinearScaling
from longctx.attention.positions.rope_scaling.llama3 import Llama3
from longctx.attention.positions.rope_scaling.none import NoScaling
from longctx.attention.positions.rope_scaling.ntk import NTK
from longctx.attention.positions.rope_scaling.yarn import YaRN

__all__ = ["NTK", "DynamicNTK", "LinearScaling", "Llama3", "NoScaling", "RopeScaling", "YaRN"]
