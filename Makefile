# Everything a developer does. Needs Python 3.11 or newer; nothing needs root.
#
#   make run     set up, start the whole service, answer one sample job, stay up until Ctrl-C
#   make test    set up, run every test            make check   lint, format, types
#   make bench   the benchmarks                    make setup   the environment in .venv only
#   make faults  the fault tests, those of random faults 25 times each (make test: twice)
#   make soak    20,000 jobs while workers and Redis are killed (make test: 200); SOAK_ARGS="--jobs N --seed N"

SHELL := /bin/sh
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

# The first of these that is new enough; `make PYTHON=/path/to/python3` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python $(NEW_ENOUGH) 2>/dev/null && { echo $$python; exit; }; done; echo python3)

# An environment whose interpreter is gone, or that was moved with the checkout, is installed again.
ifneq ($(shell $(VENV_PYTHON) -c '' 2>/dev/null && cat $(INSTALLED) 2>/dev/null),$(CURDIR))
$(shell rm -f $(INSTALLED))
endif

PIP := $(VENV_PYTHON) -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?=
SOAK_ARGS ?=

.PHONY: setup run test check bench faults soak

setup: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) $(NEW_ENOUGH) 2>/dev/null || { \
		echo "Fieldcast needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1`." >&2; \
		echo "Install one (macOS: brew install python@3.12), or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(VENV_PYTHON) $(NEW_ENOUGH) 2>/dev/null || { \
		echo "making $(VENV) with $(PYTHON)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' does not work here; on Debian: sudo apt-get install python3-venv" >&2; exit 1; }; }
	@echo "installing what requirements.lock names"
	@$(PIP) install --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@echo '$(CURDIR)' >$@

run: setup
	@exec $(VENV)/bin/fieldcast up

test: setup
	@$(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

check: setup
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy

faults: setup
	@$(VENV_PYTHON) -m pytest tests/faults --repetitions 25 $(PYTEST_ARGS)

soak: setup
	@PYTHONPATH=$(CURDIR) $(VENV_PYTHON) tests/soak.py $(SOAK_ARGS)

bench: setup
	@$(VENV_PYTHON) -m deploy.queue_benchmark
	@$(VENV_PYTHON) -m engine.benchmark
