PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
OTHERS := .venv-consumers
DOORS := .venv-doors
# Options for the target: make demo ARGS=--quick, make test ARGS="-k plan".
ARGS ?=

.PHONY: venv demo test test-fast browser lint docs consumers consumers-bundle clean

venv: $(READY)

# torch comes first and alone, so that pip takes the build for this machine (CPU).
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/toprune demo $(ARGS)

# Two workers with one thread each, because more threads would compete for two cores.
test: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(ARGS)

# What takes under a minute on two idle cores: nothing here trains a model.
FAST := tests/test_layers.py tests/test_imports.py tests/plan tests/io tests/data tests/report \
	tests/bundle tests/serve tests/run --ignore tests/run/test_ray_bulk.py \
	--ignore tests/serve/test_ui.py
test-fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow' $(FAST) $(ARGS)

# Tests of pages need chromium; as root we install Debian's. Without it they are skipped, or fail
# with TOPRUNE_BROWSER=required (.ci/run).
browser:
	@command -v chromium >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update \
		&& apt-get -qq install --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
		|| echo 'No chromium: tests of pages are SKIPPED. As root: apt-get install chromium'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# build/site/index.html; the page of the command line is generated from --help.
docs: $(READY)
	cd tests && ../$(BIN)/python -m support.command_page
	cd tests && ../$(BIN)/python -m support.architecture_page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Other programs open our bundles, with transformers 4 in an environment without toprune.
$(OTHERS)/.ready: constraints.txt consumers/requirements.txt
	test -x $(OTHERS)/bin/python || $(PYTHON) -m venv $(OTHERS)
	$(OTHERS)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(OTHERS)/bin/python -m pip install --quiet --constraint constraints.txt \
		--requirement consumers/requirements.txt
	touch $@

consumers-bundle consumers: export HF_HUB_OFFLINE = 1
consumers-bundle: $(READY)
	rm -rf build/consumers
	$(BIN)/python consumers/make_bundle.py build/consumers

# LangChain and LlamaIndex with toprune itself, without torch: what a serving machine has.
$(DOORS)/.ready: pyproject.toml consumers/doors.txt
	test -x $(DOORS)/bin/python || $(PYTHON) -m venv $(DOORS)
	$(DOORS)/bin/python -m pip install --quiet --editable . --requirement consumers/doors.txt
	touch $@

consumers: consumers-bundle $(OTHERS)/.ready $(DOORS)/.ready
	$(OTHERS)/bin/python consumers/check.py build/consumers
	$(DOORS)/bin/python consumers/doors.py build/consumers

clean:
	rm -rf .venv $(OTHERS) $(DOORS) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
