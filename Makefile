# Each target works alone in a fresh clone with Python 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch comes first: any other package could pull in a build with gigabytes of CUDA libraries.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick lint bench clean

demo: $(VENV)/.demo
	$(BIN)/accel-bench run

test: $(VENV)/.test
	$(BIN)/python -m pytest

quick: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml plugins/compile/pyproject.toml
	$(PIP) -e . -e plugins/compile
	touch $@

$(VENV)/.test: $(VENV)/.demo plugins/example/pyproject.toml
	$(PIP) -e '.[test]' -e plugins/compile -e plugins/example
	touch $@

clean:
	rm -rf $(VENV)
