# `make takeover` runs the main job, `make studio` serves LangGraph Studio, `make test` passes the tests that protect
# correctness, `make coverage` shows what these do not reach, `make test-all` passes all tests, `make docs` builds the
# site, `make bench` measures, `make compare` compares with other projects. All set up what they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
WORKERS ?= 5
SEED ?= $(shell python3 -c 'import secrets; print(secrets.randbelow(10**6))')
PYTEST = $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal
STUDIO ?=
# Programs of external agents for the slow tests. Claude Code is proprietary: its tests run where you have installed it.
AGENTS := .agents
AGENTS_READY := $(AGENTS)/.ready
AGENT_PACKAGES := @openai/codex@0.171.0 @qwen-code/qwen-code@0.15.10 opencode-ai@1.18.33
AGENT_PATH := $(CURDIR)/$(AGENTS)/node_modules/.bin:$(CURDIR)/$(AGENTS)/mini/bin
# deepagents needs newer packages than the pinned ones, so it has an environment of its own, which sees the other packages too.
# Two directories there are for single tests: an earlier deepagents, and langchain-mcp-adapters, which needs mcp 1.
DEEPAGENTS := $(AGENTS)/deepagents
DEEPAGENTS_READY := $(DEEPAGENTS)/.ready
BENCH ?=
COMPARE ?=

.PHONY: setup agents deepagents takeover studio check test coverage test-all lint docs bench compare clean
.DEFAULT_GOAL := takeover

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@echo "Setting up $(VENV), some minutes: about $$(grep -c '^[a-z]' requirements.txt) packages are fetched and unpacked."
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Qwen Code needs Node 20 or later.
agents: $(AGENTS_READY)

$(AGENTS_READY): Makefile
	@if ! command -v npm >/dev/null; then \
	    echo "npm is not installed: the slow tests skip Codex, Qwen Code and opencode (install Node 20 or later)"; \
	else \
	    echo "Installing external agents into $(AGENTS), about 1.4 GB"; \
	    mkdir -p $(AGENTS) && npm install --silent --no-audit --no-fund --prefix $(AGENTS) $(AGENT_PACKAGES); \
	fi
	python3 -m venv $(AGENTS)/mini
	$(AGENTS)/mini/bin/python -m pip install --quiet --disable-pip-version-check mini-swe-agent==2.4.6
	touch $@

deepagents: $(DEEPAGENTS_READY)

$(DEEPAGENTS_READY): Makefile $(READY)
	python3 -m venv $(DEEPAGENTS)
	$(DEEPAGENTS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    deepagents==0.7.32 langchain-tests==1.1.9 pytest-timeout
	$(DEEPAGENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(DEEPAGENTS)/0.6 deepagents==0.6.12
	$(DEEPAGENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(DEEPAGENTS)/mcp langchain-mcp-adapters==0.3.2 mcp==1.30.0 httpx-sse==0.4.3 pydantic-settings==2.16.3
	$(PYTHON) -c "import site; print(*site.getsitepackages(), sep='\n')" \
	    > "$$($(DEEPAGENTS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_others.pth"
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

# Compiles all modules once, beside the checks; otherwise each test process compiles them.
$(COMPILED): $(READY) $(shell find . -name '*.py' -not -path './.*')
	@PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest --collect-only -qq >/dev/null || true
	@touch $@

check: $(READY)
	@$(MAKE) --no-print-directory -j2 lint $(COMPILED)

# Random examples are few, and the same in every run; `test-all` draws new ones.
test: check
	$(PYTEST) -m "not slow"

coverage: check
	$(PYTEST) -m "not slow" --cov --cov-report=term

test-all: SEED := $(SEED)
test-all: check agents deepagents
	@echo "Random tests are drawn from seed $(SEED); to repeat them: make test-all SEED=$(SEED)"
	TAKEOVER_TEST_SEED=$(SEED) $(PYTEST) --hypothesis-seed=$(SEED) -m "not slow"
	TAKEOVER_TEST_AGENTS="$(AGENT_PATH):$(TAKEOVER_TEST_AGENTS)" TAKEOVER_TEST_SEED=$(SEED) $(PYTEST) \
	    --hypothesis-seed=$(SEED) -m slow --durations=60

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html, or serve it: $(VENV)/bin/mkdocs serve"

# For instance BENCH="--quick --only sandboxes,report_cost". Fails with `Error 3` if a goal is missed.
bench: $(READY)
	$(PYTHON) -m benchmarks $(BENCH)

# The same seven tasks in five projects, each in an environment of its own. For instance COMPARE="--only takeover,deepagents".
compare: $(READY)
	$(PYTHON) -m benchmarks.compare $(COMPARE)

clean:
	rm -rf $(VENV) $(AGENTS) .compare build dist site *.egg-info
