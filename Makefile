# One front door. `make` alone says what there is; every target does the set-up that it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
SEED ?= 0
TEST_WORKERS ?= 2
ARGS ?=

# The first interpreter that is new enough and can make an environment; `make PYTHON=/path/to/python` overrules.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$candidate; break; fi; done)

.PHONY: help setup demo test test-fast check format soak bench bench-recovery bench-recovery-cluster bench-operator bench-checkpoint deploy images images-check binaries cluster cluster-down demo-cluster clean

help:  ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Options: PYTHON=<python 3.11 or newer>, TEST_WORKERS=<number, $(TEST_WORKERS)>, SEED=<number> for soak, ARGS='<more arguments>' for test, soak, images and the benches"

setup: $(STAMP)  ## Make .venv with everything in it (torch too); done once, and again when it changes

# The stamp comes last: whatever fails before it is repeated next time.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv and ensurepip found; install one or give make PYTHON=..." >&2; exit 1; }
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing PyTorch and the rest into $(VENV) (some 6 GB): one to three minutes"
	$(PY) -m pip install --disable-pip-version-check --no-input --quiet -c constraints.txt -e '.[operator,worker,dev]'
	touch $@

demo: $(STAMP)  ## Train a small GPT through a kill, a preemption, a hang and a resize (one to four minutes on 2 cores)
	$(BIN)/rtj demo

# What tests would build is built before, where its progress can be seen. Without it those that need it fail,
# each with the reason.
test: $(STAMP)  ## All tests but the soak, TEST_WORKERS files at a time
	-@PYTHONPATH=tests $(PY) -m bed build --quiet
	$(PY) -m pytest -q -n $(TEST_WORKERS) --dist loadfile $(ARGS)

test-fast: $(STAMP)  ## Tests that need neither torch, nor a cluster, nor whole runs
	$(PY) -m pytest -q -m "not torch and not cluster and not e2e and not soak and not bench" $(ARGS)

check: $(STAMP)  ## Lint, format, types, import layers, Python 3.9 syntax of contract and agent
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- worker/resumable_training/contract worker/resumable_training/agent

format: $(STAMP)  ## Format the code in place
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

soak: $(STAMP)  ## The whole product of faults and moments, in the order that SEED gives (long)
	RESUMABLE_SOAK_SEED=$(SEED) $(PY) -m pytest -q -m soak --timeout 3600 $(ARGS)

bench: $(STAMP)  ## Cost of the loop, and recovery in short; results in tests/bench/results
	$(PY) tests/bench/bench_steps.py
	$(PY) tests/bench/bench_recovery.py --quick $(ARGS)

bench-recovery: $(STAMP)  ## Recovery beside torchrun, ten runs of each at 2 and 4 ranks; ARGS='--peers', '--help'
	$(PY) tests/bench/bench_recovery.py $(ARGS)

bench-recovery-cluster: $(STAMP)  ## The same on a real API server with process-backed pods, ten runs; needs root; ARGS='--help'
	PYTHONPATH=tests:tests/fakes $(PY) tests/bench/bench_recovery_cluster.py $(ARGS)

bench-operator: $(STAMP)  ## The operator with 200 and 1,000 jobs on a real API server (about half an hour on 2 cores)
	PYTHONPATH=tests:tests/fakes $(PY) tests/bench/bench_operator.py $(ARGS)

bench-checkpoint: $(STAMP)  ## What a save and a restart cost beside torch.save and DCP; results in tests/bench/results
	$(PY) tests/bench/bench_checkpoint.py $(ARGS)

deploy: $(STAMP)  ## Write the CRD from the models and the dashboards, and render deploy/ from the chart
	$(PY) -m resumable_operator.crd
	$(PY) deploy/monitoring/dashboards.py
	PYTHONPATH=tests $(PY) deploy/render.py

images:  ## Build both images with docker, podman or buildah; ARGS='--registry R', '--help'
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; give make PYTHON=..." >&2; exit 1; }
	$(PYTHON) deploy/images/image_build.py $(ARGS)

images-check: $(STAMP)  ## Run what `make images` built as pods do (docker or podman), and say what is wrong
	PYTHONPATH=tests $(PY) deploy/images/image_check.py $(ARGS)

binaries: $(STAMP)  ## Build the control plane and Helm that tests use, unless they are there (about 10 minutes, once)
	PYTHONPATH=tests $(PY) -m bed build

cluster: $(STAMP)  ## Start a Kubernetes cluster on this machine with the operator in it, and say what to type next
	PYTHONPATH=tests $(PY) -m bed up --detach $(ARGS)

cluster-down: $(STAMP)  ## Stop it
	PYTHONPATH=tests $(PY) -m bed down

demo-cluster: $(STAMP)  ## The demo on a cluster whose machines fail (about 4 minutes on 2 cores)
	PYTHONPATH=tests $(PY) -m bed demo $(ARGS)

clean:  ## Remove .venv, caches, build and benchmark results (not runs/)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache .cache tests/bench/results
	find operator worker tests -name __pycache__ -type d -prune -exec rm -rf {} +
