# `make takeover` runs the main job, `make studio` serves LangGraph Studio, `make test` passes the tests, `make bench`
# measures. All set up what they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 3
STUDIO ?=
BENCH ?=

.PHONY: setup takeover studio test lint bench clean
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

# Its watch for changed source would start the server anew in the middle of a run.
studio: $(READY)
	LANGGRAPH_CLI_NO_ANALYTICS=1 $(VENV)/bin/langgraph dev --no-reload $(STUDIO)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: $(READY) lint
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# For instance BENCH="--quick --only sandbox,report".
bench: $(READY)
	$(PYTHON) -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist *.egg-info
