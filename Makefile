# Everything a person or CI does here; `make` alone lists the targets.
# Options for the program behind a target: make demo ARGS="--help"

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.created $(VENV)/.runtime $(VENV)/.dev $(VENV)/.aot

# Bytecode is written when a module is first imported: installing is a quarter faster without it.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

# Compiled JAX programs are kept between runs: the second demo and the second test run are faster.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.5

.DEFAULT_GOAL := help
.PHONY: help venv aot demo test lint benchmark clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.runtime ## create .venv with what running needs

# Afterwards, set JAX_PLATFORMS=cpu where there is no accelerator: else JAX looks for both kinds, and
# says at length that it found none. The tests do so.
aot: $(VENV)/.aot ## add compilers for accelerators that are not here (2 GB)

demo: $(VENV)/.runtime ## the short tour
	$(BIN)/python -m scripts.demo $(ARGS)

test: lint ## lint, then all tests but the slow ones
	$(BIN)/pytest --typecheck --numprocesses 2 --dist worksteal -m "not slow" $(ARGS)

lint: $(VENV)/.dev ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

benchmark: $(VENV)/.runtime ## speed and memory on this machine
	$(BIN)/python -m scripts.benchmark $(ARGS)

clean: ## remove .venv, caches and builds; runs/ stays
	rm -rf $(VENV) .cache build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define CHECK_PYTHON
import sys
found = "%d.%d" % sys.version_info[:2]
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit("Python %s was found, 3.11 to 3.13 is needed: make PYTHON=python3.12" % found)
try:
    import ensurepip, venv
except ImportError:
    sys.exit("Python %s lacks its venv module; on Debian and Ubuntu: apt install python3-venv" % found)
endef
export CHECK_PYTHON

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The stamps are gone while pip works, so an interrupted install starts afresh the next time.
$(VENV)/.runtime: pyproject.toml | $(VENV)/.created
	@echo "Installing what running needs: half a minute to three, by your network."
	@rm -f $(STAMPS)
	$(INSTALL) -e .
	@touch $(VENV)/.created $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.created
	@echo "Installing what running and testing need: one to four minutes, by your network."
	@rm -f $(STAMPS)
	$(INSTALL) -e ".[dev]"
	@touch $(VENV)/.created $(VENV)/.runtime $@

$(VENV)/.aot: pyproject.toml | $(VENV)/.created
	@echo "Installing also the compilers for TPUs and GPUs: two to eight minutes, by your network."
	@rm -f $(STAMPS)
	$(INSTALL) -e ".[dev,aot]"
	@touch $(VENV)/.created $(VENV)/.runtime $(VENV)/.dev $@
