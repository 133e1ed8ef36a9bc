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

    parser.addoption(
        "--kit-report",
        metavar="FILE",
        help="write the worst error of every variant in the property kit as a markdown table",
    )


WORST: dict[str, dict[str, float]] = {}


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Return a function that keeps the largest error of a property, for the report."""
    name = request.node.callspec.params["name"]
    row = WORST.setdefault(name, {})
    test = request.node.originalname.removeprefix("test_").replace("_", " ")

    def keep(error: float) -> None:
        row[test] = max(row.get(test, 0.0), error)

    return keep


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's errors to the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["worst"] = WORST


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Take a worker's errors."""
    for name, row in getattr(node, "workeroutput", {}).get("worst", {}).items():
        ours = WORST.setdefault(name, {})
        for test, error in row.items():
            ours[test] = max(ours.get(test, 0.0), error)


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Write the report of the property kit."""
    file = config.getoption("--kit-report")
    if file:
        columns = sorted({column for row in WORST.values() for column in row})
        lines = [["variant", *columns], ["---", *["---:"] * len(columns)]]
        for name, row in sorted(WORST.items()):
            lines.append([f"`{name}`", *(f"{row[c]:.1e}" if c in row else "" for c in columns)])
        Path(file).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


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


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Compile a module's programs in half the time, for what is small and runs once."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Let wrong shapes through to the function's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
