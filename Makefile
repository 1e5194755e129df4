# make demo     install, then the whole method on real images, from nothing to a verdict
# make check    install, then format, lint, types and the quick tests: while working
# make test     the same with the slow tests, all that need no server, browser or other library
# make test-all every check and test
# make build    the source archive and the wheel, into dist/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt

.PHONY: help install dev demo check test test-all browser build format glyphs clean

help:
	@grep -E '^# make' Makefile | cut -c3-

install: $(VENV)/installed
dev: $(VENV)/installed-dev

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("unibct needs Python 3.11 or newer, not " + sys.version.split()[0] + "; say make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[report]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	$(INSTALL) --quiet --no-compile --group dev
	@touch $@

demo: install
	$(BIN)/unibct demo

check: TESTS := -m "not slow and not slowest"
test: TESTS := -m "not slowest"
check test test-all: export PYTHONDONTWRITEBYTECODE :=  # each of the test processes would compile all files
check test test-all: TYPES := $(BIN)/basedpyright --pythonpath $(BIN)/python
check test test-all: PYTEST = $(BIN)/python -m pytest -n auto $(TESTS)
test-all: browser
check test test-all: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo '$(TYPES) beside $(PYTEST)'
	@$(TYPES) > $(VENV)/types.txt 2>&1 & types=$$!; $(PYTEST); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests || types))

browser:
	@sh scripts/need_browser.sh

build: dev
	$(BIN)/python -m build --no-isolation

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Make the embedded image set again (downloads the fonts of scripts/glyphs_*fonts.txt; needs npm).
glyphs: dev
	$(INSTALL) --quiet --group glyphs
	$(BIN)/python scripts/make_glyphs.py
	$(BIN)/python scripts/make_glyphs_final.py

clean:
	rm -rf $(VENV) build dist
