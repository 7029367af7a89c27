# Everything a fresh clone needs: `make demo` and `make test` set up .venv first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
JOBS ?= 2
# Set-up compiles nothing of what it installs, which takes half of its time: Python does, of what it imports, where it may write.
export PYTHONDONTWRITEBYTECODE =
BIN := .venv/bin
SETUP := .venv/.setup-done

.PHONY: help setup style test test-all gates docs test-transformers test-gpu verified memcheck bench lint format demo build check emitted clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(SETUP)  ## create .venv and install chunkform there, with what the tests need

$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit(f"chunkform needs Python 3.11 to 3.13, and {sys.executable} is {sys.version.split()[0]}; name another: make PYTHON=python3.12")'
	@echo "setting up .venv (this takes a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

# Types are read beside the tests, so that no core waits for them; what they say comes last.
define with-types
@$(TYPES) > build/types.txt 2>&1 & types=$$!; tests=0; \
 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --no-header -n $(JOBS) --dist worksteal --durations=10 $(1) || tests=$$?; \
 wait $$types || { cat build/types.txt; exit 1; }; exit $$tests
endef
TYPES = $(BIN)/mypy --no-error-summary | sed 's|^build/typing/chunkform/||'

test: style  ## lint, types and tests; the ten slowest are printed (ARGS=--record=FILE)
	$(call with-types,$(ARGS))

test-all: style  ## the tests, with those that take minutes; what passed, and when, is to be committed: results/cpu/tests.json
	$(call with-types,-m "" --record results/cpu/tests.json $(ARGS))

test-all: export CHUNKFORM_TEST_GATES = once

gates: setup  ## after the tests: how many gates ran, and how many are recorded as passed (ARGS=--write records what ran)
	@$(BIN)/python tests/shared/gates_record.py $(ARGS)

docs: setup build/typing  ## the documentation as a site, in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

test-wheels: setup  ## the wheel in fresh environments of other Pythons, with a network: PYTHONS="3.12 3.13" (ARGS="--torch 2.10.0")
	@$(BIN)/python tests/install/wheels.py $(PYTHONS) $(ARGS)

test-transformers: setup  ## transformers' own tests of the models that enable() runs: SRC=checkout of the installed version (ARGS=..)
	@test -d "$(SRC)/tests/models" || { echo "SRC must be a checkout of transformers $$($(BIN)/python -c 'import transformers; print(transformers.__version__)'): make test-transformers SRC=.."; exit 2; }
	@names=$$($(BIN)/python -c 'from chunkform.integrations.transformers import models; print(*(f"tests/models/{n}" for n in models()))'); \
	 $(BIN)/python -c 'import httpx, parameterized' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check httpx parameterized; \
	 python=$$PWD/$(BIN)/python; cd $(SRC) && $$python -m pytest -q -p chunkform.integrations.transformers.testing $$(ls -d $$names 2> /dev/null) $(ARGS)

# Runs in PYTHON's own environment, installing nothing: GPU machines often have their torch and no network.
test-gpu:  ## the GPU tests, with PYTHON's own torch, triton and pytest
	@$(PYTHON) -c 'import torch; torch.cuda.is_available() or __import__("sys").exit("make test-gpu: torch sees no CUDA device")'
	@$(PYTHON) tests/gpu/side_by_side.py $(ARGS)

verified: setup  ## which kernels aren't those that passed the GPU tests (no GPU needed; ARGS=--check, --readme)
	@$(BIN)/python -m benchmarks.verified $(ARGS)

memcheck:  ## compute-sanitizer over the smallest calls of every kernel, on a GPU
	@$(PYTHON) -m benchmarks.memcheck $(ARGS)

bench:  ## speed beside the peers on a GPU, with PYTHON's own torch and triton (benchmarks/README.md)
	@$(PYTHON) -m benchmarks.gpu --out out/speed $(ARGS)

style: setup build/typing
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted; run: make format"; $(BIN)/ruff format --check .; }

lint: style  ## ruff and mypy
	@$(TYPES)

# The import names as directories, for mypy, which follows neither package-dir nor the editable install.
build/typing: Makefile chunkform
	@rm -rf $@ && mkdir -p $@/chunkform
	@for file in chunkform/*; do ln -s ../../../$$file $@/chunkform/; done
	@for package in codegen generated integrations runtime spec; do ln -s ../../../$$package $@/chunkform/; done

format: setup  ## format, and fix what ruff can
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

demo: setup  ## a new recurrence, from its equations to a trained model (out/index.html)
	@$(BIN)/python examples/demo.py $(ARGS)

build: setup  ## write generated/ from spec/
	@$(BIN)/chunkform build $(ARGS)

check: setup  ## compare the generated ops with the float64 oracle on this machine
	@$(BIN)/chunkform check $(ARGS)

emitted: setup  ## whose emitted text has changed, of every spec of the repository (ARGS=--write records it)
	@$(BIN)/python tests/shared/emitted.py --jobs $(JOBS) $(ARGS)

clean:  ## remove what make made
	rm -rf .venv build out .mypy_cache .pytest_cache .ruff_cache *.egg-info
