# Everything a developer runs. A target makes the virtual environment if it is missing, installs what it
# needs, and runs; a second run installs nothing unless pyproject.toml changed.

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= fast
RUN := $(VENV)/bin/python
SPHINX := -q -n -W --keep-going -d docs/_build/doctrees

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint format types docs clean same-python

help: ## print this help
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "PYTHON=$(PYTHON) is the interpreter that makes the virtual environment, VENV=$(VENV) its folder."
	@echo "PROFILE=$(PROFILE) says how many inputs a proof tries: fast, ci or thorough."

demo: $(VENV)/demo.stamp ## run the example that the README shows
	$(RUN) examples/relocate_ridge.py

test: $(VENV)/test.stamp ## run the tests, and the examples in the docstrings
	$(RUN) -m pytest -n 2 --doctest-modules --erythroxy-profile=$(PROFILE) tests erythroxy_tx

lint: $(VENV)/lint.stamp ## check style and format
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(VENV)/lint.stamp ## mend style and format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

types: $(VENV)/types.stamp ## check types
	$(RUN) -m mypy

docs: $(VENV)/docs.stamp ## build the pages, and run the examples in them
	$(RUN) -m sphinx $(SPHINX) -E -b html docs docs/_build/html
	$(RUN) -m sphinx $(SPHINX) -b doctest docs docs/_build/doctest
	@echo "built docs/_build/html/index.html"

clean: ## remove all that these targets made
	rm -rf .venv .venv-* docs/_build build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find erythroxy_tx tests docs examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each dependency group of pyproject.toml.
$(VENV)/%.stamp: pyproject.toml $(VENV)/pip.stamp | same-python
	$(RUN) -m pip install -q -e . --group $*
	@touch $@

# pip reads dependency groups since 25.1.
$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Python 3.11 or newer is needed, and "$(PYTHON)" is not that. Name another: make PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo '"$(PYTHON)" cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --upgrade 'pip>=25.1'
	@touch $@

# A folder keeps the interpreter it was made with: a PYTHON that differs is refused, not ignored.
same-python: $(VENV)/pip.stamp
ifneq ($(origin PYTHON),file)
	@VERSION='import sys; print(*sys.version_info[:2], sep=".")'; \
	WANTED=$$($(PYTHON) -c "$$VERSION") && FOUND=$$($(RUN) -c "$$VERSION") && [ "$$WANTED" = "$$FOUND" ] || { \
	  echo "$(VENV) holds Python $$FOUND, and $(PYTHON) is $$WANTED. Choose another folder: VENV=.venv-$$WANTED"; exit 1; }
endif
