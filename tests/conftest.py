"""What all tests share: the CPU, shape checks on request, repeatable examples, shared data."""

import os
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import beartype
import hypothesis
import jaxtyping
import pytest
from jaxtyping import AbstractArray, install_import_hook

ROOT = Path(__file__).parents[1]
# Not music: it reads what others wrote, so it checks arrays itself and has tests of its messages.
CHECKED_PACKAGES = ["kernels", "longctx", "eval"]

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of jax

hypothesis.settings.register_profile("dev", deadline=None)  # the first example compiles
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--typecheck",
        action="store_true",
        help="check the array shapes in all signatures at every call (`make test` does)",
    )


def holds_array(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(holds_array(part) for part in typing.get_args(hint))


def check_shapes(function: Callable) -> Callable:
    """Let beartype check those annotations that are arrays; pyright checks the others.

    Not of constructors: jax rebuilds pytree dataclasses with placeholders for their arrays.
    """
    if function.__name__ == "__init__":
        return function
    annotations = function.__annotations__
    arrays = {name: hint for name, hint in annotations.items() if holds_array(hint)}
    if not arrays:
        return function
    function.__annotations__ = arrays
    try:
        return beartype.beartype(function)
    finally:
        function.__annotations__ = annotations


def pytest_configure(config: pytest.Config) -> None:
    """Hook the imports before the first test module imports a package of ours."""
    if config.getoption("--typecheck"):
        install_import_hook(CHECKED_PACKAGES, f"{__name__}.check_shapes")


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Return a function from the name of a data set beside the project to its folder.

    It skips the test where the data set is absent.
    """

    def find(name: str) -> Path:
        path = ROOT.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"needs the data set {name} in ../shared/data")
        return path

    return find


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Let wrong shapes through to the function's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
