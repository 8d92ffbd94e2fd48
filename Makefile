# Each target works alone in a fresh clone with Python 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Libraries that change every stack as soon as they are installed, for the tests that provoke that.
TRAPS := $(VENV)-traps
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
# torch comes first: any other package could pull in a build with gigabytes of CUDA libraries.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick traps lint bench clean

demo: $(VENV)/.demo
	$(BIN)/accel-bench run

test: $(VENV)/.test $(TRAPS)/.done
	ACCEL_BENCH_TRAPS="$(CURDIR)/$(TRAPS)" $(BIN)/python -m pytest

quick: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"

traps: $(TRAPS)/.done

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

# Its own packages come before those of the other environment, which it sees all.
$(TRAPS)/.done: $(VENV)/.test
	$(BIN)/python -m venv --clear --without-pip $(TRAPS)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" \
		> "$$($(TRAPS)/bin/python $(SITE))/ordinary.pth"
	$(TRAPS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		gptqmodel==7.6.0 optimum==2.3.0 torchao==0.18.0 bitsandbytes==0.50.2
	touch $@

clean:
	rm -rf $(VENV) $(TRAPS)
