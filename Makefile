# make demo: see it work.  make test: everything that must hold.  Both need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadgroup
GUARDED := shoal.privacy shoal.mechanisms shoal.protocols shoal.messages shoal.sim shoal.audit shoal.crypto

.PHONY: demo test check soak data docs vectors format bench clean

demo: $(VENV)/.core
	$(BIN)/shoal hello

test: check
	$(PYTEST) $(PARALLEL) tests/statistical tests/contract tests/paper tests/e2e -m "not soak"

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) $(PARALLEL) tests/unit tests/property tests/vectors src --doctest-modules -m "not soak" \
		$(addprefix --cov=,$(GUARDED)) --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

soak: $(VENV)/.dev
	SHOAL_FRESH_SEEDS=1 SHOAL_FUZZ_EXAMPLES=100000 $(PYTEST) $(PARALLEL) tests/property tests/statistical tests/e2e

data: $(VENV)/.core
	$(BIN)/python tools/data.py

docs: $(VENV)/.dev
	$(BIN)/python tools/reference.py
	$(BIN)/python -m shoal.study.spec > docs/reference/study.schema.json

vectors: $(VENV)/.dev
	$(BIN)/python -m tools.vectors

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks run samplers

clean:
	rm -rf $(VENV) .bench .coverage .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.core: pyproject.toml constraints.txt tools/environment.sh
	PYTHON=$(PYTHON) tools/environment.sh core
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt tools/environment.sh
	PYTHON=$(PYTHON) tools/environment.sh dev
	touch $@
