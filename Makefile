# make demo: see it work. make test: run all checks and tests. Both need Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 2 --dist worksteal
# End-to-end tests wait for windows and deadlines most of the time: three at a time fill two cores.
WAITING := -n 3 --dist worksteal
# Branch coverage of these packages by their unit tests is 100 %. Tracing doubles the time, so only
# these are traced, except slow tests that cover no branch alone (marker `untraced`).
GUARDED := privacy mechanisms protocols messages simulation audit crypto
TRACED := $(addprefix tests/unit/,$(GUARDED))

# Tests start hundreds of programs; each would compile shoal again without bytecode files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check types untraced soak tor data docs screenshot vectors hashes sbom format bench clean

demo: $(VENV)/.demo
	$(BIN)/shoal hello

test: check
	$(PYTEST) $(WAITING) tests/statistical tests/contract tests/paper tests/e2e tests/browser -m "not soak"

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory -j 2 types untraced  # mypy alone would leave the other cores idle
	$(PYTEST) $(PARALLEL) $(TRACED) -m "not soak and not untraced" \
		$(addprefix --cov=shoal.,$(GUARDED)) --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered
	$(PYTEST) $(PARALLEL) $(TRACED) -m "untraced and not soak"

types: $(VENV)/.dev
	$(BIN)/mypy

untraced: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) tests/unit tests/property tests/vectors src --doctest-modules -m "not soak" $(addprefix --ignore=,$(TRACED))

soak: $(VENV)/.dev
	SHOAL_FRESH_SEEDS=1 SHOAL_FUZZ_FACTOR=20 $(PYTEST) $(PARALLEL) tests/property tests/statistical tests/e2e
	$(PYTEST) $(PARALLEL) tests/unit tests/contract -m soak

tor: $(VENV)/.dev  # a private Tor network on this machine, until Ctrl-C
	$(BIN)/python -m tools.tornet

data: $(VENV)/.demo
	$(BIN)/python tools/data.py

docs: $(VENV)/.dev
	$(BIN)/python -m tools.reference
	$(BIN)/python -m shoal.study.spec > docs/reference/study.schema.json
	$(BIN)/python -m shoal.models.reader > docs/reference/model.schema.json
	$(BIN)/python -m tools.site

screenshot: $(VENV)/.dev  # of the demonstration's report, for the README
	$(BIN)/shoal hello --no-open
	$(BIN)/python -m tools.screenshot shoal-hello/report.html docs/report.png

vectors: $(VENV)/.dev
	$(BIN)/python -m tools.vectors

hashes: $(VENV)/.dev  # for deployments; asks the package index that pip is configured for
	$(BIN)/python -m tools.supply.hashes

sbom: $(VENV)/.dev
	$(BIN)/python -m tools.supply.sbom sbom.cdx.json

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks run samplers

clean:
	rm -rf $(VENV) .bench .coverage .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.demo: pyproject.toml constraints.txt tools/environment.sh
	PYTHON=$(PYTHON) tools/environment.sh demo
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt tools/environment.sh
	PYTHON=$(PYTHON) tools/environment.sh dev
	touch $@
