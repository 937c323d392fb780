# Everything that people do twice. `make run` and `make test` are all a newcomer needs; both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON2 ?= python2.7
# Two a core: many tests wait for another process, and not for a core.
WORKERS ?= $(shell expr 2 '*' $$(nproc))

# Half of what tests wait for is the disk. `make test` has its files in memory where there is plenty, `make test-long` on
# the disk.
IN_MEMORY := $(shell test -w /dev/shm && grep -q ' /dev/shm tmpfs ' /proc/mounts && ! grep -q ' /dev/shm tmpfs [^ ]*noexec' /proc/mounts \
  && test $$(df -Pk /dev/shm | awk 'END {print $$4}') -gt 6000000 && awk '/^MemAvailable/ {exit $$2 < 12000000}' /proc/meminfo \
  && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# What tests need that PyPI does not have: commands, and the packages of Debian that bring them.
PROGRAMS := chromium:chromium pg_createcluster:postgresql

.PHONY: run pipelines test test-long test-often setup programs lint types imports tree docs openapi bench torture starvation torture-spark \
  fuzz schemathesis autobahn mutants spark-zip wheel lock clean

# All targets install into the same environment.
.NOTPARALLEL:

run: $(VENV)/.installed-server  ## set up what the server needs, then start it on its embedded local store
	exec $(BIN)/whippet serve

pipelines: $(VENV)/.installed-pipelines  ## set up what `whippet pipeline` needs: Spark, and what its sinks speak with

test: setup programs  ## set up, then pass all tests
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-long: setup programs  ## what `make test` leaves out: many rounds, seeds and combinations
	$(BIN)/python -m pytest -n $(WORKERS) -m long $(PYTEST_ARGS)

test-often: setup programs  ## some tests N times in a row, with every core busy: make test-often N=20 K=quic
	$(BIN)/python -m tests.often $(or $(N),20) $(if $(K),-k '$(K)') $(PYTEST_ARGS)

setup: $(VENV)/.installed-dev  ## set up everything

# The versions, with their hashes, are in requirements/. What is installed for more than was asked serves for less, too.
$(VENV)/.installed-%: requirements/%.txt setup.py pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement $<
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# Spark asks the folders on its path, not the import system, which modules are installed.
	@ln -sfn "$(CURDIR)/pyspark_whippet" "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pyspark_whippet"
	@touch $@ $(if $(filter dev,$*),$(patsubst %,$(VENV)/.installed-%,build lint pipelines server)) \
	  $(if $(filter build lint pipelines,$*),$(VENV)/.installed-server)

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null \
	  || { echo "Whippet needs Python 3.11 or newer, and there is no '$(PYTHON)' here" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Whippet needs Python 3.11 or newer, and this is $$($(PYTHON) --version 2>&1): try 'make PYTHON=python3.11'" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq $(notdir $(PYTHON))-venv; } >/dev/null 2>&1 \
	  || { echo "$(PYTHON) cannot make virtual environments: 'apt-get install $(notdir $(PYTHON))-venv' adds that" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

lock: $(BIN)/pip  ## take the newest versions that pyproject.toml allows into requirements/
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	rm -f requirements/*.txt
	$(LOCK) --extra dev --output-file requirements/dev.txt
	$(LOCK) --constraint requirements/dev.txt --output-file requirements/server.txt
	$(LOCK) --constraint requirements/dev.txt --extra build --output-file requirements/build.txt
	$(LOCK) --constraint requirements/dev.txt --extra lint --output-file requirements/lint.txt
	$(LOCK) --constraint requirements/dev.txt --extra pipelines --output-file requirements/pipelines.txt

LOCK := echo 'setuptools>=77,<90' | $(BIN)/uv pip compile --quiet pyproject.toml - --universal --python-version 3.11 \
  --generate-hashes --no-header --annotation-style line

wheel: $(VENV)/.installed-build  ## the wheel and the source distribution, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

programs:  ## installed if we may; else it is said, and the tests that need them are skipped
	@for each in $(PROGRAMS); do command -v $${each%%:*} >/dev/null || missing="$$missing $${each##*:}"; done; \
	  test -z "$$missing" \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } \
	  || echo "some tests are skipped without these: apt-get install$$missing" >&2

lint: $(VENV)/.installed-lint  ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# The folders under the names that they are installed by: tools that read files do not know what setup.py says.
TREE := $(VENV)/tree
tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)/whippet
	@cp -al whippet/. $(TREE)/whippet
	@cp -al app bench pipelines storage transports $(TREE)/whippet
	@cp -al pyspark_whippet tests deploy $(TREE)
	@# Programs that other interpreters run import these by their bare names.
	@cp -al tests/sdk/programs/scenario.py tests/sdk/programs/versions.py $(TREE)

types: setup tree  ## mypy, strict
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

imports: setup tree  ## dependencies point one way
	cd $(TREE) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.import_linter_cache

docs: setup  ## write the pages that are generated from the code
	$(BIN)/whippet config --docs > docs/configuration.md
	$(BIN)/whippet config --toml > deploy/server.toml
	$(BIN)/python -m whippet.pipelines.docs > docs/pipelines.md

openapi: setup  ## write the OpenAPI document from the table of routes
	$(BIN)/python -m whippet.transports.http.openapi > openapi/openapi.json

bench: setup  ## the benchmarks, with their yardsticks
	$(BIN)/whippet bench storage
	$(BIN)/whippet bench tcp
	$(BIN)/whippet bench http
	$(BIN)/whippet bench ws
	$(BIN)/whippet bench quic
	$(BIN)/whippet bench spark

torture: setup  ## kill -9 under load, for as long as you like: make torture ROUNDS=1000
	WHIPPET_TORTURE_ROUNDS=$(or $(ROUNDS),500) $(BIN)/python -m pytest -s tests/storage/test_kill.py tests/storage/test_kill_producers.py \
	  tests/transports/http/test_kill_over_http.py

starvation: setup  ## on a quiet machine: hostile clients of every kind, beside whom others have to keep half of their rate
	WHIPPET_STARVATION_RATES=1 $(BIN)/python -m pytest -s -m long tests/transports/test_starvation_process.py

torture-spark: setup  ## kill -9 of Spark and of the gateway while topics are copied: make torture-spark ROUNDS=100
	WHIPPET_SPARK_ROUNDS=$(or $(ROUNDS),20) $(BIN)/python -m pytest -s tests/pyspark_whippet/test_kills.py

fuzz: setup  ## a live server against bytes that no client should send: make fuzz SECONDS=600
	WHIPPET_FUZZ_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s tests/transports/test_fuzz.py

schemathesis: setup  ## the HTTP API against its OpenAPI document: make schemathesis SECONDS=600
	WHIPPET_SCHEMATHESIS_SECONDS=$(or $(SECONDS),300) $(BIN)/python -m pytest -s tests/transports/http/test_schemathesis.py

mutants: setup  ## do the tests notice? Small mistakes, one at a time: make mutants PACKAGE=storage N=50 SEED=1
	$(BIN)/python -m tests.mutants.sample $(or $(PACKAGE),storage) -n $(or $(N),50) --seed $(or $(SEED),1) $(if $(AGAIN),--again)

autobahn: setup  ## Autobahn's suite for WebSocket, with a Python 2 to run it: make autobahn PYTHON2=python2.7
	test -d $(VENV)/autobahn || { $(PYTHON2) -m pip install --quiet --target $(VENV)/autobahn autobahntestsuite==0.8.2 && touch $(VENV)/autobahn/zope/__init__.py; }
	WHIPPET_AUTOBAHN=$(CURDIR)/$(VENV)/autobahn WHIPPET_PYTHON2=$(PYTHON2) $(BIN)/python -m pytest tests/transports/websocket/test_autobahn.py

suites: setup  ## the tests that the official clients publish, against this gateway: make suites K="python go"
	$(BIN)/python -m tests.suites.run $(K)

spark-zip: setup  ## the data source for spark-submit --py-files: dist/whippet-spark.zip
	$(BIN)/python -m whippet.pipelines.spark_zip dist/whippet-spark.zip

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutants_cache *.egg-info
