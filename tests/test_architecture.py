"""The shape of the house: who may import whom, how long things may be, what is banned.

    scripts, tests -> configs -> eval -> music -> longctx -> kernels -> jax

A package imports what stands to its right, never what stands to its left.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What a module may import of ours, by its first matching prefix.
MAY_IMPORT = {
    "kernels": ["kernels"],
    "longctx": ["longctx", "kernels"],
    "music": ["music", "longctx.data"],
    "eval": ["eval", "music", "longctx", "kernels"],
    "configs": ["configs", "eval", "music", "longctx", "kernels"],
    "scripts": ["scripts", "configs", "eval", "music", "longctx", "kernels"],
    "tests": ["tests", "scripts", "configs", "eval", "music", "longctx", "kernels"],
}
KERNELS_MAY_IMPORT = {"jax", "numpy", "jaxtyping", "einops", *sys.stdlib_module_names}
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill"}
BANNED_NAMES = {"utils.py", "common.py"}
FILE_LINES = {"kernels": 400, "scripts": 80}  # others: MAX_FILE_LINES
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50


def module_name(path: str) -> str:
    """Return the dotted name of a file: longctx/data/__init__.py is longctx.data."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and full name of all that a file imports, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The package that one leading dot means, then one level up for each further dot.
            package = Path(path).parts[:-1]
            base = package[: len(package) + 1 - node.level] if node.level else ()
            stem = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*stem, alias.name])) for alias in node.names)


def within(name: str, packages: list[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def wrong_arrows(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield the imports that go against the arrows."""
    room = module_name(path).split(".")[0]
    for line, name in imports(path, tree):
        top = name.split(".")[0]
        if top in MAY_IMPORT:
            if not within(name, MAY_IMPORT[room]):
                yield f"{path}:{line}: {room} imports {name}, may: {', '.join(MAY_IMPORT[room])}"
        elif room == "kernels" and top not in KERNELS_MAY_IMPORT:
            yield f"{path}:{line}: kernels imports {name}, may: jax, numpy, jaxtyping, einops"


def pickles(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield what would run code out of a data file."""
    for line, name in imports(path, tree):
        if name.split(".")[0] in PICKLES:
            yield f"{path}:{line}: imports {name}; save arrays (npz, orbax) or JSON"
    for node in ast.walk(tree):
        if not (isinstance(node, ast.keyword) and node.arg == "allow_pickle"):
            continue
        if not (isinstance(node.value, ast.Constant) and node.value.value is False):
            yield f"{path}:{node.value.lineno}: allow_pickle has to be False"


def too_long(path: str, source: str, tree: ast.AST) -> Iterator[str]:
    """Yield the file and the functions that exceed their room's lines; tests are exempt."""
    room = module_name(path).split(".")[0]
    if room == "tests":
        return
    limit = FILE_LINES.get(room, MAX_FILE_LINES)
    lines = len(source.splitlines())
    if lines > limit:
        yield f"{path}: {lines} lines, at most {limit} in {room}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {lines} lines, "
                    f"at most {MAX_FUNCTION_LINES}"
                )


def violations(path: str, source: str) -> list[str]:
    """Return one sentence for all that is wrong with a file, given its path from the root."""
    tree = ast.parse(source)
    found = [*wrong_arrows(path, tree), *pickles(path, tree), *too_long(path, source, tree)]
    if Path(path).name in BANNED_NAMES:
        found.append(f"{path}: a file is a noun; name it for what it holds")
    return found


def test_the_house_is_in_order():
    files = [path for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]
    assert files, f"no Python files under {ROOT}"
    found = [
        sentence
        for path in files
        for sentence in violations(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    if found:
        pytest.fail("\n".join([f"{len(found)} against the house rules:", *found]), pytrace=False)


FUNCTION_OF_51_LINES = "def long():\n" + "    pass\n" * 50


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("kernels/a.py", "import longctx", "kernels imports longctx"),
        ("kernels/a.py", "import flax", "kernels imports flax"),
        ("kernels/a.py", "from torch import nn", "kernels imports torch.nn"),
        ("longctx/a.py", "from music import midi", "longctx imports music.midi"),
        ("longctx/a.py", "def f():\n    import eval.speed", "a.py:2: longctx imports eval.speed"),
        ("longctx/data/a.py", "from ...music import midi", "longctx imports music.midi"),
        ("music/a.py", "import longctx", "music imports longctx"),
        ("music/a.py", "from longctx import data, train", "music imports longctx.train"),
        ("music/a.py", "from longctx.database import x", "music imports longctx.database"),
        ("music/a.py", "import kernels.topk", "music imports kernels.topk"),
        ("eval/a.py", "import configs", "eval imports configs"),
        ("configs/a.py", "import scripts.train", "configs imports scripts.train"),
        ("scripts/a.py", "from tests import conftest", "scripts imports tests.conftest"),
        ("tests/a.py", "import pickle", "imports pickle"),
        ("eval/a.py", "from pickle import loads", "imports pickle.loads"),
        ("eval/a.py", "np.load(x, allow_pickle=True)", "a.py:1: allow_pickle"),
        ("eval/a.py", "np.load(x, allow_pickle=flag)", "allow_pickle"),
        ("eval/utils.py", "", "a file is a noun"),
        ("tests/music/common.py", "", "a file is a noun"),
        ("eval/a.py", "\n" * 301, "301 lines, at most 300"),
        ("kernels/a.py", "\n" * 401, "401 lines, at most 400"),
        ("scripts/a.py", "\n" * 81, "81 lines, at most 80"),
        ("eval/a.py", FUNCTION_OF_51_LINES, "long has 51 lines, at most 50"),
        ("eval/a.py", f"async {FUNCTION_OF_51_LINES}", "long has 51 lines"),
        ("eval/a.py", "class A:\n  def f(s):\n" + "    pass\n" * 50, "f has 51 lines"),
    ],
)
def test_a_violation_is_seen(path: str, source: str, complaint: str):
    assert any(complaint in sentence for sentence in violations(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/a.py", "import jax.numpy as jnp, numpy, math\nfrom kernels.merge import merge"),
        ("kernels/attention/a.py", "from . import spec\nfrom ..merge import merge"),
        ("longctx/__init__.py", "from .data import base\nfrom kernels import topk\nimport flax"),
        ("music/a.py", "from longctx.data.base import Vocabulary\nfrom longctx import data"),
        ("scripts/a.py", "import configs, eval, music, longctx, kernels"),
        ("eval/a.py", "np.load(x, allow_pickle=False)"),
        ("kernels/a.py", "\n" * 400),
        ("eval/a.py", FUNCTION_OF_51_LINES.removesuffix("    pass\n")),
        ("tests/a.py", FUNCTION_OF_51_LINES + "\n" * 1000),
    ],
)
def test_what_is_allowed_is_not_a_violation(path: str, source: str):
    assert violations(path, source) == []


def test_every_offender_is_listed():
    source = "import pickle\nimport music\n" + "\n" * 300 + FUNCTION_OF_51_LINES
    assert len(violations("longctx/utils.py", source)) == 5
