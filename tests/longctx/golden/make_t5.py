"""Make t5.json with Hugging Face transformers 5.24 (and torch): python make_t5.py

Each case: the settings, the first distance (query minus key) and the buckets of all distances from
there to 1000, as runs [bucket, count]. The suite doesn't run this.
"""

import json
from itertools import groupby
from pathlib import Path

import torch
from transformers.models.t5.modeling_t5 import T5Attention


def main() -> None:
    cases = []
    for buckets, max_distance in ((32, 128), (20, 300)):
        for two_sided in (False, True):
            first = -1000 if two_sided else 0
            found = T5Attention._relative_position_bucket(
                -torch.arange(first, 1001), two_sided, buckets, max_distance
            )
            runs = [[bucket, len(list(run))] for bucket, run in groupby(found.tolist())]
            case = {"buckets": buckets, "max_distance": max_distance, "two_sided": two_sided}
            cases.append(json.dumps({**case, "first": first, "runs": runs}))
    Path(__file__).with_name("t5.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")


if __name__ == "__main__":
    main()
