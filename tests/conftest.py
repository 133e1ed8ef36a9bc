"""What all tests share: the CPU, shape checks on request, repeatable examples, shared data."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from jaxtyping import install_import_hook

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


def pytest_configure(config: pytest.Config) -> None:
    """Hook the imports before the first test module imports a package of ours."""
    if config.getoption("--typecheck"):
        install_import_hook(CHECKED_PACKAGES, "shape_checks.check_shapes")


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
