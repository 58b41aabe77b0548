# Every verb sets up what it needs. CI calls these and nothing else.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

.PHONY: help setup demo test test-all peers bench format check constraints clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## install everything into .venv

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/headrace/engine/kernels/csrc/*) $(wildcard src/headrace/_native/*.[ch])
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version); the first time takes a minute or more"
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[engine,dev]'
	@touch $@

demo: $(STAMP) ## gateway, two engines, one streaming chat; ONCE=1 ends after it
	@$(BIN)/headrace demo $(if $(ONCE),--once)

test: $(STAMP) ## the default suite
	@$(BIN)/python -m pytest

peers: $(STAMP) ## install what the benchmarks compare with, outside the repository; PRODUCTION_STACK=DIR
	@$(BIN)/python benchmarks/peers/install.py $(if $(PRODUCTION_STACK),--production-stack $(PRODUCTION_STACK))

bench: $(STAMP) ## every benchmark, and docs/benchmarks.md from it; QUICK=1, ONLY=NAMES
	@$(BIN)/python -m benchmarks.all $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

test-all: $(STAMP) ## the slow tests too
	@$(BIN)/python -m pytest -m ""

format: $(STAMP) ## format and fix what can be fixed
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

check: $(STAMP) ## format, lint, types, layers
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

constraints: $(STAMP) ## write the installed versions to constraints.txt
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
