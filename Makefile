# A target for everything that is done more than once. Newcomers need `make run` and `make test`; both set up .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON2 ?= python2.7
# Two per core: many tests wait for another process, not for a core.
WORKERS ?= $(shell expr 2 '*' $$(nproc))

# Half of the time of the tests is spent on the disk. `make test` keeps its files in memory if there is enough,
# `make test-long` on the disk.
IN_MEMORY := $(shell test -w /dev/shm && grep -q ' /dev/shm tmpfs ' /proc/mounts && ! grep -q ' /dev/shm tmpfs [^ ]*noexec' /proc/mounts \
  && test $$(df -Pk /dev/shm | awk 'END {print $$4}') -gt 6000000 && awk '/^MemAvailable/ {exit $$2 < 12000000}' /proc/meminfo \
  && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# Programs that tests need and PyPI does not have, with their Debian packages.
PROGRAMS := chromium:chromium pg_createcluster:postgresql zsh:zsh fish:fish mandoc:mandoc

.PHONY: run pipelines test test-long test-often setup programs kafka lint types imports tree docs openapi bench dashboard-bench torture starvation torture-spark \
  fuzz schemathesis autobahn mutants spark-zip wheel release lock clean

# All targets install into the same environment.
.NOTPARALLEL:

run: $(VENV)/.installed-server  ## install what the server needs, then start it on the data folder local_data
	exec $(BIN)/whippet serve

pipelines: $(VENV)/.installed-pipelines  ## install what `whippet pipeline` needs: Spark, and the clients of its sinks

test: setup programs  ## install everything, then run the tests
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-long: setup programs  ## the tests that `make test` leaves out: many rounds, seeds and combinations
	$(BIN)/python -m pytest -n $(WORKERS) -m long $(PYTEST_ARGS)

test-often: setup programs  ## run some tests N times in a row, with every core busy: make test-often N=20 K=quic
	$(BIN)/python -m tests.often $(or $(N),20) $(if $(K),-k '$(K)') $(PYTEST_ARGS)

setup: $(VENV)/.installed-dev  ## install everything

# The versions, with their hashes, are in requirements/. A larger installation also counts as the smaller ones.
$(VENV)/.installed-%: requirements/%.txt setup.py pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement $<
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# Spark searches the folders on its path for modules, without the import system.
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
	  || { echo "$(PYTHON) cannot create virtual environments: run 'apt-get install $(notdir $(PYTHON))-venv'" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

lock: $(BIN)/pip  ## lock the newest versions that pyproject.toml allows, in requirements/
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	rm -f requirements/*.txt
	$(LOCK) --extra dev --output-file requirements/dev.txt
	$(LOCK) --constraint requirements/dev.txt --output-file requirements/server.txt
	$(LOCK) --constraint requirements/dev.txt --extra build --output-file requirements/build.txt
	$(LOCK) --constraint requirements/dev.txt --extra lint --output-file requirements/lint.txt
	$(LOCK) --constraint requirements/dev.txt --extra pipelines --output-file requirements/pipelines.txt

LOCK := echo 'setuptools>=77,<90' | $(BIN)/uv pip compile --quiet pyproject.toml - --universal --python-version 3.11 \
  --generate-hashes --no-header --annotation-style line

wheel: $(VENV)/.installed-build  ## build the wheel and the source distribution, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

release: $(VENV)/.installed-build  ## build what a release consists of, in dist/: wheel, sources, bill of materials, checksums
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m whippet.app.cli.sbom > dist/whippet-gateway.cdx.json
	cd dist && sha256sum -- * > SHA256SUMS

programs:  ## install the programs that tests need, as root; otherwise warn that these tests are skipped
	@for each in $(PROGRAMS); do command -v $${each%%:*} >/dev/null || missing="$$missing $${each##*:}"; done; \
	  test -z "$$missing" \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } \
	  || echo "some tests are skipped without these: apt-get install$$missing" >&2
	@test -d '$(KAFKA)' || { command -v mvn >/dev/null && $(MAKE) --quiet kafka; } >/dev/null 2>&1 \
	  || echo "some tests are skipped without Apache Kafka: apt-get install maven, then make kafka" >&2

# It is kept outside of the folder, for all clones.
KAFKA ?= $(HOME)/.cache/whippet/kafka-4.1.1/libs
kafka: $(KAFKA)  ## fetch Apache Kafka from Maven Central, for tests
$(KAFKA):
	rm -rf '$@.unfinished'
	mvn --quiet --batch-mode -f tests/storage/kafka/support/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -DoutputDirectory='$@.unfinished'
	mv '$@.unfinished' '$@'

lint: $(VENV)/.installed-lint  ## check the style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# The folders under the names by which they are installed, for tools that do not read setup.py.
TREE := $(VENV)/tree
tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)/whippet
	@cp -al whippet/. $(TREE)/whippet
	@cp -al app bench pipelines storage transports $(TREE)/whippet
	@cp -al pyspark_whippet tests deploy $(TREE)
	@# Programs for other interpreters import these by their bare names.
	@cp -al tests/sdk/programs/scenario.py tests/sdk/programs/versions.py $(TREE)

types: setup tree  ## check the types with mypy, strict
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

imports: setup tree  ## check the direction of imports
	cd $(TREE) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.import_linter_cache

docs: setup  ## generate the pages that are made from the code
	$(BIN)/whippet config --docs > docs/configuration.md
	$(BIN)/python -m whippet.app.client.sync_types > app/client/sync.pyi
	$(BIN)/python -m whippet.app.error_pages > docs/errors.md
	$(BIN)/python -m whippet.app.client.reference > docs/python-api.md
	$(BIN)/whippet config --toml > deploy/server.toml
	$(BIN)/python -m whippet.pipelines.docs > docs/pipelines.md
	$(BIN)/python -m whippet.app.cli.docs > docs/cli.md
	$(BIN)/python -m whippet.app.cli.docs --schemas > docs/cli.schema.json
	$(BIN)/python -m whippet.app.cli.manual > docs/man/whippet.1
	$(BIN)/python -m whippet.bench.run.schemas > docs/bench.schema.json

openapi: setup  ## generate the OpenAPI document from the table of routes
	$(BIN)/python -m whippet.transports.http.openapi > openapi/openapi.json

bench: setup  ## run the benchmarks, with their yardsticks
	$(BIN)/whippet bench storage
	$(BIN)/whippet bench tcp
	$(BIN)/whippet bench http
	$(BIN)/whippet bench ws
	$(BIN)/whippet bench quic
	$(BIN)/whippet bench spark

dashboard-bench: setup programs  ## measure the dashboard in Chromium: size, first view, frames while messages arrive
	$(BIN)/python -m tests.app.dashboard.support.measure

torture: setup  ## kill -9 under load: make torture ROUNDS=1000
	WHIPPET_TORTURE_ROUNDS=$(or $(ROUNDS),500) $(BIN)/python -m pytest -s tests/storage/test_kill.py tests/storage/test_kill_producers.py \
	  tests/transports/http/test_kill_over_http.py

starvation: setup  ## on a quiet machine: other clients must keep half of their rate next to hostile ones
	WHIPPET_STARVATION_RATES=1 $(BIN)/python -m pytest -s -m long tests/transports/test_starvation_process.py

torture-spark: setup  ## kill -9 Spark and the gateway while topics are copied: make torture-spark ROUNDS=100
	WHIPPET_SPARK_ROUNDS=$(or $(ROUNDS),20) $(BIN)/python -m pytest -s tests/pyspark_whippet/test_kills.py

fuzz: setup  ## send a live server bytes that no client should send: make fuzz SECONDS=600
	WHIPPET_FUZZ_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s tests/transports/test_fuzz.py

schemathesis: setup  ## test the HTTP API against its OpenAPI document: make schemathesis SECONDS=600
	WHIPPET_SCHEMATHESIS_SECONDS=$(or $(SECONDS),300) $(BIN)/python -m pytest -s tests/transports/http/test_schemathesis.py

mutants: setup  ## mutation tests, small mistakes one at a time: make mutants PACKAGE=storage N=50 SEED=1
	$(BIN)/python -m tests.mutants.sample $(or $(PACKAGE),storage) -n $(or $(N),50) --seed $(or $(SEED),1) $(if $(AGAIN),--again)

autobahn: setup  ## Autobahn's test suite for WebSocket, run by Python 2: make autobahn PYTHON2=python2.7
	test -d $(VENV)/autobahn || { $(PYTHON2) -m pip install --quiet --target $(VENV)/autobahn autobahntestsuite==0.8.2 && touch $(VENV)/autobahn/zope/__init__.py; }
	WHIPPET_AUTOBAHN=$(CURDIR)/$(VENV)/autobahn WHIPPET_PYTHON2=$(PYTHON2) $(BIN)/python -m pytest tests/transports/websocket/test_autobahn.py

suites: setup  ## run the tests of the official clients, and archives in other services: make suites K="python archives"
	$(BIN)/python -m tests.suites.run $(K)

spark-zip: setup  ## build the data source for spark-submit --py-files: dist/whippet-spark.zip
	$(BIN)/python -m whippet.pipelines.spark_zip dist/whippet-spark.zip

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutants_cache *.egg-info
