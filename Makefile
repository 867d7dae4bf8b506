# `make` says what there is. Everything is installed into .venv, from the pins in requirements/.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NETWORKS := examples/networks
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test up lint format bench chaos chaos-long networks upgrade clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.cpu ## Set up, run the whole service on real input, print a report
	@$(BIN)/python -m examples.demo

test: $(VENV)/.test networks ## Set up, run the whole test suite
	@$(BIN)/python -m pytest tests -m "not slow"

up: $(VENV)/.cpu ## Run the service here until Ctrl-C
	@exec $(BIN)/headrace up

lint: $(VENV)/.test ## Lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.test ## Repair what the linter can repair by itself
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.test networks ## Benchmarks: a JSON line a figure, then a table
	@$(BIN)/python -m benchmarks.engine
	@$(BIN)/python -m benchmarks.online

chaos: $(VENV)/.test networks ## Long fault and volume runs: 8 seeds of 2 minutes on each database, and all slow tests
	@$(BIN)/python -m tests.chaos.harness --seeds 8 --seconds 120
	@$(BIN)/python -m pytest tests -m slow

chaos-long: $(VENV)/.test networks ## Fault runs of 20 seeds, 3 minutes each, on each database
	@$(BIN)/python -m tests.chaos.harness --seeds 20 --seconds 180

networks: $(VENV)/.test ## Make the example networks that aren't in the repository
	@$(BIN)/python -m examples.make_packages

upgrade: $(VENV)/.test ## Pin the newest versions that fit, and install them
	@$(BIN)/python requirements/pin.py
	@$(MAKE) --no-print-directory $(VENV)/.test

clean: ## Remove what was installed and cached (data folders stay)
	@rm -rf $(VENV) .packages dist build .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .schemathesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough: PYTHON=… chooses another.
$(BIN)/python:
	@found=""; for each in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if command -v $$each >/dev/null 2>&1 && \
	     $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$each; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo "headrace needs Python 3.11 or newer, and there is none on the PATH (python3 is" \
	       "$$(python3 --version 2>&1)). Install one, or say which: make PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
	$$found -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$$found can't make virtual environments: install its venv module (Debian, Ubuntu: python3-venv)" >&2; \
	  exit 1; }; \
	echo "setting up $(VENV) with $$($$found --version)"; $$found -m venv $(VENV)

# A stamp for each set of packages, so that the second run starts at once.
$(VENV)/.cpu: requirements/base.txt requirements/cpu.txt pyproject.toml | $(BIN)/python
	@echo "installing packages (base and cpu)"
	@$(PIP) install -r requirements/cpu.txt
	@$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.test: requirements/test.txt requirements/postgres.txt $(VENV)/.cpu
	@echo "installing packages (tests)"
	@$(PIP) install -r requirements/test.txt
	@touch $@
