"""Make rope.json with Hugging Face transformers 5.24 (and torch): python make_rope.py

Each case: a scaling of ours, the RoPE's base and head width, then what theirs says. They have no
NTK of a fixed factor, so that one is the formula of bloc97 (2023), worked out here. The suite
doesn't run this.
"""

import json
from pathlib import Path

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

THEIRS = {
    "trained_length": "original_max_position_embeddings",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
}
"""Their words for ours."""
CASES = [
    ("LinearScaling", "linear", {"factor": 4.0}, 10_000.0, 16),
    ("DynamicNTK", "dynamic", {"length": 4096, "trained_length": 1024, "factor": 1.0}, 1e4, 16),
    ("DynamicNTK", "dynamic", {"length": 3000, "trained_length": 1024, "factor": 2.5}, 1e4, 32),
    ("DynamicNTK", "dynamic", {"length": 500, "trained_length": 1024, "factor": 2.5}, 1e4, 8),
    ("YaRN", "yarn", {"factor": 16.0, "trained_length": 4096}, 10_000.0, 64),
    ("YaRN", "yarn", {"factor": 3.0, "trained_length": 512, "beta_fast": 16.0, "beta_slow": 2.0},
     10_000.0, 32),
    ("Llama3", "llama3", {"factor": 8.0, "trained_length": 8192, "low": 1.0, "high": 4.0},
     500_000.0, 64),
    ("Llama3", "llama3", {"factor": 3.0, "trained_length": 300, "low": 2.0, "high": 9.0},
     10_000.0, 32),
]  # fmt: skip


def theirs(kind: str, fields: dict, base: float, dim: int) -> tuple[list[float], float]:
    """Return their frequencies and the factor of cosines and sines."""
    words = {THEIRS.get(name, name): value for name, value in fields.items() if name != "length"}
    trained = fields.get("trained_length", 1024)
    config = LlamaConfig(
        head_dim=dim,
        max_position_embeddings=trained * (1 if kind == "dynamic" else 32),
        rope_parameters={"rope_type": kind, "rope_theta": base, **words},
    )
    found, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=fields.get("length"))
    return [float(f"{x:.9g}") for x in found.tolist()], magnitude


def main() -> None:
    cases = []
    for name, kind, fields, base, dim in CASES:
        frequencies, magnitude = theirs(kind, fields, base, dim)
        cases.append((name, fields, base, dim, magnitude, frequencies))
    base = 10_000.0 * 4.0 ** (16 / 14)
    cases.append(("NTK", {"factor": 4.0}, 1e4, 16, 1.0, [base ** (-i / 8) for i in range(8)]))
    keys = ("scaling", "fields", "base", "dim", "magnitude", "frequencies")
    lines = [json.dumps(dict(zip(keys, case, strict=True))) for case in cases]
    Path(__file__).with_name("rope.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
