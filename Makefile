# `make demo` (see it work), `make check ROOM=engine` and `make test-fast` (while you work), `make test` (before you commit).
# Everything is made in .venv/ and build/; nothing has to be installed by hand.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Jupyter refuses to run as root unless asked to; in a container one often is.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# As `python -m bench --list` has them.
BENCHES := kernel ensemble bls recorder live compiled large http grpc strings torch backends batching readability scale import install memory lessons workers others threads interpreters video
INPUTS := pyproject.toml constraints.txt scripts/environment.py

export PYTHONUNBUFFERED := 1
# Hundreds of interpreters start in the tests: without byte code each compiles what it imports, and each worker rewrites
# every assertion.
unexport PYTHONDONTWRITEBYTECODE
# torch and OpenBLAS start a pool of threads each; instances are the parallelism here.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: gpu help demo lab binder check room test-fast test-compiled test-collector test-free-threaded test bench $(BENCHES:%=bench-%) bench-stages cluster bench-history bench-page docs lite lite-check hosts types scripts test-lowest test-newest compiled examples fmt pin clean python

help:
	@echo "make demo    run the notebook about ensembles, print its table, leave build/07_ensembles.html"
	@echo "make lab     open the notebooks in JupyterLab"
	@echo "make binder  the environment of Binder in build/binder, without Docker, and the first lesson in it"
	@echo "make check ROOM=engine"
	@echo "             style, types and the fast tests of one folder of tests/: half a minute"
	@echo "make test-fast"
	@echo "             what needs no other server, browser or notebook: a minute and a half on two processors"
	@echo "make test    style, types, layers and the whole test suite, on all processors"
	@echo "             (PYTEST_FLAGS=\"--shuffle tests/engine\"; NBTRITON_SEED=free for other random cases)"
	@echo "make bench   what everything costs, beside the real server or a bare loop; one of them:"
	@echo "             make $(BENCHES:%=bench-%) bench-stages"
	@echo "             (BENCH_FLAGS=\"--rounds 9 --short\"; CORE=python for pure Python)"
	@echo "             make bench-history shows the past, make bench-page writes docs/performance.md"
	@echo "make test-free-threaded"
	@echo "             schedulers and engine by a CPython without the global lock: python3.14t or python3.13t on the"
	@echo "             PATH, or NBTRITON_FREE_THREADED=/path/to/it"
	@echo "make gpu     checks and measures the path to a GPU, and writes bench/results/"
	@echo "make compiled"
	@echo "             the hot core as C extensions in build/compiled: its tests (make test-compiled) and figures"
	@echo "make test-collector"
	@echo "             its tests with a garbage collection for each new object, and 105,000 loads, unloads and looks"
	@echo "make examples"
	@echo "             Triton's client and python backend examples against nbtriton serve, a line each"
	@echo "             (EXAMPLES_FLAGS=\"--client-source DIR --python-backend-source DIR\" or --real)"
	@echo "make cluster"
	@echo "             instances on a Ray of two nodes beside bare Ray, and what is held to be the same there: an hour"
	@echo "make hosts   the views in Notebook 7, in marimo and (with npm) by VS Code's renderer, in a headless Chromium"
	@echo "make types   pyright, strict, on a user's program (mypy is part of make test)"
	@echo "make scripts types and style of the widgets' JavaScript (needs node and npm)"
	@echo "make test-lowest"
	@echo "             the tests with the lowest version of each dependency (Python 3.11, in build/lowest);"
	@echo "             make test-newest: with what pip install brings today (in build/newest)"
	@echo "make docs    the documentation site in build/docs/html"
	@echo "make lite    the pages that run in a browser alone, in build/lite/html (needs npm; make docs then has them too);"
	@echo "             make lite-check opens them in a headless Chromium"
	@echo "make fmt     format and fix what can be fixed"
	@echo "make pin     resolve constraints.txt from pyproject.toml again"
	@echo "make clean   remove .venv/ and build/"

python:
	@test -n "$(PYTHON)" || { echo "nbtriton needs Python 3.11 or newer: apt-get install python3 (or make PYTHON=/path/to/python3 ...)"; exit 1; }

# One stamp per set of packages: installed again only when what it is made from changed.
$(VENV)/.demo: $(INPUTS) | python
	@$(PYTHON) scripts/environment.py $(VENV) ".[demo]"
	@touch $@

$(VENV)/.lab: $(INPUTS) | python
	@$(PYTHON) scripts/environment.py $(VENV) ".[demo,lab]"
	@touch $@ $(VENV)/.demo

# The compiler of the core, some seconds: it can run while the rest is installed.
$(VENV)/.compiler: $(INPUTS) | python
	@$(PYTHON) scripts/environment.py $(VENV) hatchling mypy setuptools
	@touch $@

$(VENV)/.test: $(INPUTS) | python
	@$(PYTHON) scripts/environment.py $(VENV) ".[test]"
	@touch $@ $(VENV)/.demo $(VENV)/.lab

# The path of a browser, or nothing where none can be had (its tests then skip and say so).
$(VENV)/.browser: $(VENV)/.test scripts/get_browser.py
	@$(BIN)/python scripts/get_browser.py $@

# Why there is no RTSP server for the tests of `video`; empty if there is one.
$(VENV)/.rtsp: $(VENV)/.test scripts/get_rtsp.py
	@$(BIN)/python scripts/get_rtsp.py $@

demo: $(VENV)/.demo
	@$(BIN)/python scripts/run_notebook.py notebooks/07_ensembles.ipynb --out build
	@echo "Look at build/07_ensembles.html, or run 'make lab' to open it in JupyterLab."

lab: $(VENV)/.lab
	$(BIN)/jupyter lab --notebook-dir=notebooks $(AS_ROOT) $(LAB_FLAGS)

# Two minutes and 1.5 GB: not a part of `make test`, which checks what it is made of.
binder: $(VENV)/.test
	@$(BIN)/python scripts/binder.py

# As `pip install` has it: compiled where that can be, else the reason is printed. CORE=python is pure Python, as
# an editable installation has it.
CORE ?= compiled
FIND_CORE = core=; if [ $(CORE) = compiled ] && $(BIN)/python scripts/compiled.py; then core=build/$(1); fi;
BUILD_CORE = $(MAKE) --no-print-directory build/$(1)

FAST := $(BIN)/python -m pytest -q -n auto --dist worksteal --hypothesis-profile=fast \
	-m "not (medium or slow or reference or browser or lab)"
ROOMS := $(sort $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.py))))

# Before the environment is made.
room:
	@test -n "$(filter $(ROOM),$(ROOMS))" || { echo "make check ROOM=NAME, with one of: $(ROOMS)"; exit 1; }

check: room $(VENV)/.test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(FAST) tests/$(ROOM) $(PYTEST_FLAGS)

test-fast: $(VENV)/.test
	@$(FAST) $(PYTEST_FLAGS)

# What the tests need.
ready: $(VENV)/.test $(VENV)/.browser $(VENV)/.rtsp
	@$(BIN)/python -m nbtriton.extensions.verify.install || echo "The tests against the real server will skip."

test: $(VENV)/.compiler
	@$(call FIND_CORE,unoptimized) \
		sh scripts/test.sh $(BIN) "$$core" "$(call BUILD_CORE,unoptimized)" "$(MAKE) --no-print-directory ready" $(PYTEST_FLAGS)

bench: $(BENCHES:%=bench-%) bench-stages

$(BENCHES:%=bench-%): bench-%: $(VENV)/.test
	@$(call FIND_CORE,compiled) [ -z "$$core" ] || $(call BUILD_CORE,compiled) || exit 1; PYTHONPATH=$$core $(BIN)/python -m bench $* $(BENCH_FLAGS)

# Without a GPU it prints that there is none.
gpu: $(VENV)/.test
	@$(BIN)/python -m bench.gpu

bench-stages: $(VENV)/.test
	@$(BIN)/python -m bench.stages

# Instances on a Ray of two nodes, beside bare Ray, and all that is held to be the same there: an hour. Ray is installed for it.
cluster: $(VENV)/.test
	@$(BIN)/python -m pip install --quiet -c constraints.txt "ray[serve]>=2.44,<2.45"
	@$(BIN)/python -m bench.cluster

bench-history: $(VENV)/.test
	@$(BIN)/python -m bench --history

# docs/performance.md, from the newest results.
bench-page: $(VENV)/.test
	@$(BIN)/python -m bench.page

# Needs a C compiler and Python's headers. What runs with PYTHONPATH=build/compiled runs compiled. Without optimization
# it takes a third of the time: for `make test`.
build/unoptimized: export MYPYC_OPT_LEVEL := 0
build/compiled build/unoptimized: $(VENV)/.compiler pyproject.toml scripts/compiled.py $(shell find src -name '*.py' -o -name '*.c')
	@$(BIN)/python scripts/compiled.py
	@rm -rf $@
	@echo "Compiling the hot core: a minute or two of a processor"
	@NBTRITON_COMPILED=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --target $@ .
	@PYTHONPATH=$@ $(BIN)/python -c "from nbtriton.scheduling import batcher as b; \
		assert '/$@/' in b.__file__ and b.__file__.endswith('.so'), b.__file__"
	@touch $@

# Counts the calls of a method by a subclass, which a compiled class cannot have.
COUNTS_CALLS := tests/scheduling/test_queue_policy.py::test_a_batch_costs_the_same_however_many_wait
test-compiled: build/compiled $(VENV)/.test
	@PYTHONPATH=$< $(BIN)/python -m pytest -q -n auto --dist loadfile tests/engine tests/scheduling tests/backends tests/workers \
		-m "not reference" --deselect $(COUNTS_CALLS) $(PYTEST_FLAGS)

# Half an hour of a processor: nightly.
test-collector: build/compiled
	@$(MAKE) --no-print-directory test-compiled PYTEST_FLAGS="--gc-threshold=1 $(PYTEST_FLAGS)"
	@PYTHONPATH=$< $(BIN)/python -X faulthandler -m tests.engine.storm --operations 5000 --thresholds 1 1 1
	@PYTHONPATH=$< $(BIN)/python -X faulthandler -m tests.engine.storm --operations 100000 --thresholds 50 2 2

# What runs models, with what has wheels there: no torch, and no endpoints.
FREE_THREADED := build/free-threaded
FREE_THREADED_PACKAGES := numpy pandas protobuf cloudpickle psutil hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
test-free-threaded: export PYTHON_GIL := 0
test-free-threaded:
	@python=$${NBTRITON_FREE_THREADED:-$$(command -v python3.14t || command -v python3.13t)}; \
	test -n "$$python" || { echo "no free-threaded CPython: neither python3.14t nor python3.13t is on the PATH, and NBTRITON_FREE_THREADED names none"; exit 1; }; \
	test -x $(FREE_THREADED)/bin/pytest || { $$python -m venv --clear $(FREE_THREADED) && \
		$(FREE_THREADED)/bin/python -m pip install -q --disable-pip-version-check --only-binary=:all: $(FREE_THREADED_PACKAGES); }
	@PYTHONPATH=src $(FREE_THREADED)/bin/python -m pytest -q -n auto --dist loadfile -p no:cacheprovider \
		tests/scheduling tests/engine -m "not (slow or reference)" $(PYTEST_FLAGS)

compiled: test-compiled
	@$(BIN)/python -m bench compiled $(BENCH_FLAGS)

examples: $(VENV)/.test
	@$(BIN)/python -m tests.examples $(EXAMPLES_FLAGS)

# basedpyright is pyright from PyPI with the Node that it needs: 300 MB, so it gets a separate environment.
PYRIGHT := build/pyright
$(PYRIGHT)/bin/basedpyright: | python
	@$(PYTHON) -m venv --clear $(PYRIGHT)
	@$(PYRIGHT)/bin/pip install -q --disable-pip-version-check basedpyright==1.40.2

# Notebook 7 is a part of `make test` too; marimo gets a separate environment of 400 MB, VS Code's renderer is a package of npm.
hosts: $(VENV)/.test $(VENV)/.browser
	@NBTRITON_CHROMIUM="$$(cat $(VENV)/.browser)" $(BIN)/python -m pytest -q -n0 tests/lab/test_lab_notebook.py
	@NBTRITON_CHROMIUM="$$(cat $(VENV)/.browser)" $(BIN)/python -m tests.tools marimo
	@! command -v npm > /dev/null || NBTRITON_CHROMIUM="$$(cat $(VENV)/.browser)" $(BIN)/python -m tests.tools.vscode

types: $(VENV)/.test $(PYRIGHT)/bin/basedpyright
	@$(PYRIGHT)/bin/basedpyright -p tests/typed/pyrightconfig.json --pythonpath $(BIN)/python

scripts: | python
	@$(PYTHON) scripts/javascript/check.py

test-lowest test-newest: test-%: | python
	@$(PYTHON) scripts/versions.py $* $(PYTEST_FLAGS)

# A separate stamp: the tests need none of it, and it needs neither them nor torch.
$(VENV)/.docs: $(INPUTS) | python
	@$(PYTHON) scripts/environment.py $(VENV) ".[docs,plot]"
	@touch $@

docs: $(VENV)/.docs
	@$(BIN)/python scripts/docs.py

# A separate stamp: neither the tests nor the site need it.
$(VENV)/.lite: $(VENV)/.test
	@$(PYTHON) scripts/environment.py $(VENV) ".[lite,test]"
	@touch $@

lite: $(VENV)/.lite
	@$(BIN)/python scripts/lite.py

# A minute or two of a processor: `make test` runs the same notebooks without a browser.
lite-check: lite $(VENV)/.browser
	@NBTRITON_CHROMIUM="$$(cat $(VENV)/.browser)" $(BIN)/python scripts/lite_check.py

fmt: $(VENV)/.test
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

pin: $(VENV)/.test
	@$(BIN)/python scripts/pin.py

clean:
	rm -rf $(VENV) build
