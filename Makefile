# The front door. Every target does its own set-up; nothing has to be installed by hand.

PYTHON ?= python3
BIN := .venv/bin
NEEDS := pyproject.toml constraints.txt dev/environment.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup dev native image run stop test check lint fuzz soak bench fidelity docs clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/run ## Install what the commands need into .venv; seconds when nothing changed
	@:

dev: .venv/dev ## Install what tests and linters need, too
	@:

.venv/run .venv/native .venv/dev: $(NEEDS)
	@$(PYTHON) dev/environment.py $(@F)

native: .venv/native ## Build libnvidia-ml.so.1, nvidia-smi and the compiled step, where a source has changed
	@$(BIN)/python -m native.build

image: dev native ## Make the container image for amd64 and arm64, without Docker, in dist/
	@$(BIN)/python -m deploy.image

run: setup ## Start a simulated cluster with a sample fleet and workload
	@$(BIN)/simgpu up --sample

stop: setup ## Stop what 'make run' started
	@$(BIN)/simgpu down

test: setup ## Run every level of tests, lint included
	@$(BIN)/python -m tests.levels

check: export PYTEST_ADDOPTS := --hypothesis-profile=quick $(PYTEST_ADDOPTS)
check: setup ## Lint, types, layers and unit tests, with fewer examples of each property than `make test` has
	@$(BIN)/python -m tests.levels lint unit

lint: setup ## Lint, types and layers only
	@$(BIN)/python -m tests.levels lint

fuzz: dev native ## Try every input from outside a million times, guided by coverage; FUZZ="--inputs 10000 NAME" for fewer
	@$(BIN)/python -m tests.fuzz $(FUZZ)

soak: dev native ## Run a cluster under load and faults for an hour; SOAK="--minutes 10 --seed 7" for less
	@$(BIN)/python -m soak $(SOAK)

bench: dev native ## Run the benchmarks and write benchmarks/results.json
	@$(BIN)/python -m benchmarks

fidelity: dev ## Hold the simulated H200 against a recorded one
	@$(BIN)/python -m fidelity

docs: dev ## Write the generated reference pages and the picture of the architecture anew
	@$(BIN)/python -m docs.generate
	@$(BIN)/python -m docs.architecture

clean: ## Remove what was made in the tree; the cache outside it stays
	@rm -rf .venv dist build src/simgpu/page/built src/simgpu/sim/built .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	@find src tests benchmarks deploy docs examples fidelity dev soak -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
