# The front door. Every target does its own set-up; nothing has to be installed by hand.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup run stop test check lint bench fidelity docs clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## Make the Python environment in .venv; seconds when nothing changed
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m native.build

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv"
	@$(PYTHON) -m venv .venv 2>/dev/null \
	  || { echo "Installing python3-venv"; apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null && $(PYTHON) -m venv .venv; }
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,fast,plot]'
	@touch $@

run: setup ## Start a simulated cluster with a sample fleet and workload
	@$(BIN)/simgpu up --sample

stop: setup ## Stop what 'make run' started
	@$(BIN)/simgpu down

test: setup ## Run every level of tests, lint included
	@$(BIN)/python -m tests.levels

check: setup ## Lint, types, layers and unit tests
	@$(BIN)/python -m tests.levels lint unit

lint: setup ## Lint, types and layers only
	@$(BIN)/python -m tests.levels lint

bench: setup ## Run the benchmarks and write benchmarks/results.json
	@$(BIN)/python -m benchmarks

fidelity: setup ## Hold the simulated H200 against a recorded one
	@$(BIN)/python -m fidelity

docs: setup ## Write the generated reference pages anew
	@$(BIN)/python -m docs.generate

clean: ## Remove what was made in the tree; the cache outside it stays
	@rm -rf .venv dist build src/simgpu/page/built .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	@find src tests benchmarks docs examples fidelity -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
