# Everything that needs the environment makes it first: a fresh clone needs Python 3.11+ with pip, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test test-all check format build clean

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

build: $(VENV)/ready-dev
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tenfold needs Python 3.11 or later; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[offline]'
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(INSTALL) --editable '.[dev]'
	touch $@
