"""What all tests share: the CPU, shape checks on request, repeatable examples, shared data."""

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[1]
CHECKED_PACKAGES = ["kernels", "longctx", "music", "eval", "configs"]

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of jax

hypothesis.settings.register_profile("dev", deadline=None)  # the first example compiles
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--typecheck",
        action="store_true",
        help="check the shapes and types in all signatures at every call (`make test` does)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hook the imports before the first test module imports a package of ours."""
    if config.getoption("--typecheck"):
        install_import_hook(CHECKED_PACKAGES, "beartype.beartype")


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
