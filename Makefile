# Everything that needs the environment makes it first: a fresh clone needs Python 3.11+ with pip, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
LOCKED := $(INSTALL) --require-hashes --no-deps --requirement

.PHONY: setup demo test test-all check format lock build clean

setup: $(VENV)/ready

demo: setup
	$(BIN)/tenfold train demo

test: $(VENV)/ready-dev
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/ready-dev
	$(BIN)/python -m pytest -m slow

check: $(VENV)/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# After constraints.txt or pyproject.toml changed; it asks the registry for every file's hash.
lock:
	$(INSTALL) --constraint constraints.txt --editable '.[dev]' uv
	PATH="$(BIN):$$PATH" $(BIN)/python scripts/lock.py

build: $(VENV)/ready-dev
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist

# Everything but torch is installed from files whose hashes are known: torch's CPU and CUDA builds share a version, and
# its own dependencies are in the locks.
$(VENV)/ready: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tenfold needs Python 3.11 or later; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) requirements.lock
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/pip check
	touch $@

$(VENV)/ready-dev: $(VENV)/ready requirements-dev.lock
	$(LOCKED) requirements-dev.lock
	$(BIN)/pip check
	touch $@
