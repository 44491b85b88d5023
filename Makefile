# Everything runs in .venv, which the first target makes. Needs python3 (3.11 or newer) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt --build-constraint constraints.txt
# Flower wants other versions of some packages than we do, so its tests have an environment.
FLOWER := .venv-flower
FLOWER_PIP := $(FLOWER)/bin/python -m pip --disable-pip-version-check --quiet
FLOWER_INSTALL := $(FLOWER_PIP) install -c constraints-flower.txt --build-constraint constraints-flower.txt
# Only what has files: an empty directory does not exist in a clone.
SOURCES := $(dir $(firstword $(wildcard benchmarks/*.py))) $(dir $(firstword $(wildcard examples/*.py)))
# The scripts among the modules.
BENCHMARKS ?= $(patsubst benchmarks/%.py,benchmarks.%,$(shell grep -ls __main__ benchmarks/*.py))
# A file's tests share what its fixtures made, so they run in one process; files in their order, the
# short ones (doctests) last.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Without compiled files, each process that a test starts would compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE
# Options to pass on, as in make run ARGS="--seeds 3" or make bench ARGS=--quick.
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run paper test test-quick test-flower test-spark coverage lint docs bench clean

help:  ## Show this list.
	@echo "Usage: make TARGET"
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

run: $(VENV)/run.stamp  ## Install the package in .venv; train on MNIST without and with privacy.
	$(BIN)/diffsketch compare --config examples/compare/first.toml --page $(ARGS)

paper: $(VENV)/run.stamp  ## Run the paper's evaluation again; ARGS=--quick for minutes, ARGS=--list.
	$(BIN)/python -m paper $(ARGS)

test: $(VENV)/dev.stamp  ## Run the tests.
	$(BIN)/python $(PYTEST)

test-quick: $(VENV)/dev.stamp  ## Run the tests that are not slow: for every day.
	$(BIN)/python $(PYTEST) -m "not slow"

test-flower: $(FLOWER)/stamp  ## Run the tests of the Flower engine, in .venv-flower.
	@# Where it is missing these tests are skipped, and here they must not be.
	$(FLOWER)/bin/python -c 'import flwr'
	$(FLOWER)/bin/python $(PYTEST) tests/flower src/diffsketch/flower

test-spark: $(VENV)/spark.stamp  ## Run the tests of data frames of Spark; they need Java.
	$(BIN)/python -m pytest tests/analytics/test_spark.py

coverage: $(VENV)/dev.stamp  ## Show which lines the quick tests do not run.
	$(BIN)/python $(PYTEST) -m "not slow" --cov=diffsketch --cov-report=term:skip-covered

lint: $(VENV)/dev.stamp  ## Check style (ruff) and types (mypy).
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy src tests paper $(SOURCES)

docs: $(VENV)/dev.stamp  ## Build the documentation into site/: open site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(VENV)/dev.stamp  ## Run the benchmarks; ARGS=--quick for a short run.
	@test -n "$(BENCHMARKS)" || echo "There are no benchmarks yet."
	@set -e; for name in $(BENCHMARKS); do \
		echo "$(BIN)/python -m $$name $(ARGS)"; $(BIN)/python -m $$name $(ARGS); done

clean:  ## Remove the environments, caches and the outputs of runs.
	rm -rf $(VENV) $(VENV)-3.12 $(VENV)-3.13 $(FLOWER) runs site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests paper benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# How an environment begins, given its folder. One that was interrupted on its way has no pip.
define begin
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; set one with make PYTHON=..." >&2; exit 1; }
	@echo "Setting up $(1); the first time takes some minutes, most of them for PyTorch."
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
	$(1)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.3"
endef

$(VENV)/run.stamp: pyproject.toml constraints.txt
	$(call begin,$(VENV))
	$(INSTALL) -e ".[pages]"
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(INSTALL) --group dev
	@touch $@

# A source archive of half a gigabyte, which only these tests need.
$(VENV)/spark.stamp: $(VENV)/dev.stamp
	$(INSTALL) -e ".[spark]"
	@touch $@

$(FLOWER)/stamp: pyproject.toml constraints-flower.txt
	$(call begin,$(FLOWER))
	$(FLOWER_INSTALL) -e ".[flower,pages,secure]" --group test
	@touch $@
