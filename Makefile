# spillway: `make demo` and `make test` need Python 3.11+, Java 17 and make; each sets up what it needs.
# PYTHON=/path/to/python3.11 chooses the interpreter of the environment; ARGS=... go to the program.

VENV ?= .venv
PY := $(VENV)/bin/python
# Tests write many small files: to memory where there is a GiB of it.
SCRATCH := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 2^20 {print "/dev/shm"}')
SEED ?= 1
SIZE ?= 400
LOCK := $(VENV)/bin/uv pip compile -q --generate-hashes --universal --python-version 3.11 \
	--custom-compile-command "make lock"
MEASURED := delay history decisions standstill formats window_memory subgroups cleanup lineage
FORMATS := --extra avro --extra protobuf
export VENV PYTHON
# Containers are often told to write no byte code: the tests would then be compiled in each process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-runtime setup-airflow demo demo-fast check test mutants soak bench measure lab profile docs lock clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## Environment, packages, jars (nothing when they are there)
	@scripts/setup all

setup-runtime:
	@scripts/setup runtime

setup-airflow:
	@scripts/setup airflow

demo: setup-airflow ## A trading day under Airflow, with its page and its proof (under 6 minutes)
	@$(VENV)/bin/spillway demo --airflow $(ARGS)

demo-fast: setup-runtime ## The same day without Airflow (about 3 minutes)
	@$(VENV)/bin/spillway demo $(ARGS)

check: setup ## Lint, format, types, fast tests (under 2 minutes)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(PY) -m pytest -q -n 3 -o tmp_path_retention_policy=failed \
		-m "not server and not soak and not slow" tests $(ARGS)

test: check ## Everything that check does, then slower tests and those that start servers (about 40 minutes)
	@$(PY) -m pytest -q -n 3 --dist worksteal -m "(server or slow) and not soak" tests $(ARGS)

mutants: setup ## Planted lies (ARGS=NAME for one), then a sample (SEED=1 SIZE=400): tests must notice
	@$(PY) -m tests.mutants.run $(ARGS)
	@$(if $(ARGS),,$(PY) -m tests.mutants.sample --seed $(SEED) --size $(SIZE))

soak: setup ## Long campaigns: 50,000 schedules, kills at random moments
	@$(PY) -m pytest -q -m soak --timeout=0 tests $(ARGS)

bench: setup ## Side by side with Spark's own join and a plain copy
	@$(PY) -m benchmarks $(ARGS)

measure: setup ## bench, then all other programs of docs/measured.md that CONTRIBUTING.md lists
	@failed=0; for each in benchmarks $(addprefix benchmarks.,$(MEASURED)); do \
		$(PY) -m $$each || failed=1; done; exit $$failed

lab: setup ## The papers' experiments on a virtual clock, into docs/ (about 40 minutes)
	@$(PY) -m benchmarks.lab --docs $(ARGS)

profile: setup ## Where an epoch's time goes
	@$(PY) -m benchmarks.profiling $(ARGS)

docs: setup ## The pages of docs/ as HTML in site/
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

lock: setup ## Resolve the locks again from pyproject.toml
	@$(LOCK) --group build -o requirements-build.lock
	@$(LOCK) pyproject.toml $(FORMATS) -c requirements-build.lock -o requirements.lock
	@$(LOCK) pyproject.toml $(FORMATS) --group airflow -c requirements-build.lock -c requirements.lock \
		-o requirements-airflow.lock
	@$(LOCK) pyproject.toml $(FORMATS) --group dev -c requirements-build.lock -c requirements.lock \
		-c requirements-airflow.lock -o requirements-dev.lock
	@$(LOCK) --group flink -o requirements-flink.lock

clean: ## Stop the embedded broker; remove the environment and everything under var/
	@[ ! -x $(VENV)/bin/spillway ] || $(VENV)/bin/spillway kafka stop
	rm -rf $(VENV) var site build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
