# Everything a person or CI runs. Each target makes the environment it needs first: once, then it is skipped.
SHELL := bash
LOCK ?= cpu
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow check bench clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@bash requirements/install.sh $(LOCK)

demo: setup  ## set-up and the main job: a team of three agents learns, then where to look
	@$(BIN)/mappa data build
	@$(BIN)/mappa run lab

test: setup  ## set-up and the whole test suite, but for what needs minutes, a GPU or a Docker engine
	@$(BIN)/python -m pytest -m "not slow and not gpu and not docker"

test-slow: setup  ## the tests that need minutes
	@$(BIN)/python -m pytest -m "slow and not gpu and not docker"

check: setup  ## format, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

bench: setup  ## benchmarks against limits and peers
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:  ## removes the environment and the caches of tools; runs and data stay
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache *.egg-info
