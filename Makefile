# `make takeover` runs the main job, `make studio` serves LangGraph Studio, `make test` passes the tests that protect
# correctness, `make test-all` passes all of them, `make docs` builds the site, `make bench` measures. All set up what they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 4
SEED ?= $(shell python3 -c 'import secrets; print(secrets.randbelow(10**6))')
PYTEST = $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal
STUDIO ?=
BENCH ?=

.PHONY: setup takeover studio test test-all lint docs bench clean
.DEFAULT_GOAL := takeover

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@echo "Setting up $(VENV), some minutes: about $$(grep -c '^[a-z]' requirements.txt) packages are fetched and unpacked."
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

takeover: $(READY)
	$(PYTHON) -m evals.takeover --view structured --workers 2

# With --reload a changed source file would restart the server in the middle of a run; the page that it opens has no token.
studio: $(READY)
	LANGGRAPH_CLI_NO_ANALYTICS=1 $(VENV)/bin/langgraph dev --no-reload --no-browser $(STUDIO)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Random examples are the same in every run; `test-all` draws new ones.
test: $(READY) lint
	$(PYTEST) -m "not slow"

test-all: SEED := $(SEED)
test-all: $(READY) lint
	@echo "Random tests are drawn from seed $(SEED); to repeat them: make test-all SEED=$(SEED)"
	TAKEOVER_TEST_SEED=$(SEED) $(PYTEST) --hypothesis-seed=$(SEED)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html, or serve it: $(VENV)/bin/mkdocs serve"

# For instance BENCH="--quick --only sandbox,report".
bench: $(READY)
	$(PYTHON) -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist site *.egg-info
