# SharePod: `make demo` and `make test` do all their set-up themselves.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help build demo test mutants deep soak e2e check bench bench-placement clean

PYTHON ?= python3
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST_ARGS ?=
WORKERS ?= 8
# Python keeps what it has compiled: else each of the workers, and each program that a test starts, does it all anew.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := setup.py $(wildcard region/*.[ch] hook/*/*.[chS] simgpu/*/*.[ch] simgpu/*/*.def simgpu/*/*.inc driver/*.h driver/*.def \
	agent/*/*.[ch] agent/*/*.def scheduler/placement/csrc/*.[ch] \
	agent/build_native.py scheduler/build_native.py proto/*.proto)
# The set of sources: a file added or removed rebuilds too, although no remaining file is newer.
SOURCE_LIST := $(sort $(SOURCES))

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: $(VENV)/built ## Build everything into .venv (a second run is instant)

demo: build ## Run three programs at 50/30/20 percent of one GPU, real or simulated
	@$(BIN)/sharepod demo

test: build ## Run the tests, WORKERS at a time (ROOM=hook: of one room; PYTEST_ARGS adds arguments)
	@$(BIN)/python tests/run.py $(WORKERS) $(if $(ROOM),--room=$(ROOM)) $(PYTEST_ARGS)

# The folder of a target, unless PYTEST_ARGS names files of it.
unless_named = $(if $(filter tests/%,$(PYTEST_ARGS)),,$(1))

deep: build ## Run what digs deeper: sanitizers, fuzzers, strangers' programs, stress, every row of bench.gpu
	@$(BIN)/python tests/run.py 0 $(call unless_named,tests/deep) $(if $(ROOM),--room=$(ROOM)) $(PYTEST_ARGS)

N ?= 20
SEED ?= 1
mutants: build ## Seed N slips into ROOM, one at a time, and say which test notices each (root; SEED=7 draws others)
	@$(BIN)/python tests/mutants/run.py "$(ROOM)" $(N) $(SEED)

soak: export SHAREPOD_TEST_SCHEDULES := 3000
soak: build ## Run 3,000 random schedules of gangs and as many random orders of jobs (an hour)
	@$(BIN)/pytest tests/node/agent/test_agent_gangs.py tests/virtual/scheduler/test_rounds.py -k "random or beside_gangs or three_times or joined" --timeout=7200 $(PYTEST_ARGS)

# Another cluster only when it is given here: the variable in a developer's shell may lead to one in use.
ifeq ($(origin KUBECONFIG),command line)
e2e: export SHAREPOD_E2E_KUBECONFIG := $(abspath $(KUBECONFIG))
endif
e2e: export SHAREPOD_E2E_KUBERNETES := $(KUBERNETES)
e2e: build ## Run the tests that need a Kubernetes cluster, on 1.37, KUBERNETES=1.34 or KUBECONFIG=… (root, Go)
	@$(BIN)/python tests/run.py 0 $(call unless_named,tests/e2e) $(PYTEST_ARGS)

check: build ## Check types, style, imports, protocol, spelling and C warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p sharepod -p rig -p bench
	$(BIN)/lint-imports
	if compgen -G 'proto/*.proto' >/dev/null; then $(BIN)/buf lint; fi
	git ls-files -z '*.c' '*.h' | xargs -0 --no-run-if-empty $(BIN)/clang-format --dry-run -Werror
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(BIN)/python setup.py -q lint_c

bench: build ## Measure every bar of the design and print the table
	@$(BIN)/python -m bench

bench-placement: build ## Replay the openb trace under our placement and the published one (../shared or DATA=…)
	@$(BIN)/python -m bench.cluster.placement $(if $(DATA),--data $(DATA))

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info simgpu/lib hook/*.so agent/_native* scheduler/_native* proto/*_pb2*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: pinned packages, then this project in place. No build isolation: what builds is pinned as well.
$(VENV)/installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt install python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: 3.11 or later is needed, set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "the venv module is missing: apt install python3-venv" >&2; exit 1; }
	@command -v $(CC) >/dev/null || { echo "the C compiler $(CC) is missing: apt install gcc libc6-dev" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing the pinned packages into $(VENV) (once, about a minute)"
	@$(PIP) install -c constraints.txt cffi grpcio-tools mypy-protobuf setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev,kubernetes,scheduler,curves]'
	@touch $@

$(VENV)/sources: FORCE | $(VENV)/installed
	@printf '%s\n' $(SOURCE_LIST) | cmp -s - $@ || printf '%s\n' $(SOURCE_LIST) >$@

$(VENV)/built: $(VENV)/installed $(VENV)/sources $(SOURCES)
	@echo "building the hook, the simulated GPU and the generated code"
	@mkdir -p simgpu/lib
	@$(BIN)/python setup.py -q build_proto build_ext --inplace
	@touch $@

.PHONY: FORCE
FORCE:
