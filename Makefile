# `make run` and `make check` are all a newcomer needs: both install what they need into .venv, and say so.
# `make help` lists the rest.

PYTHON ?= python3
RUN ?= runs/cartpole.yaml
ARGS ?=
# For `make images`: which, the program that builds them, its arguments, what stands before their names, and their tag.
IMAGES ?= light cpu actor-gpu learner-gpu
BUILDER ?= docker
BUILD_ARGS ?=
REGISTRY ?=
TAG ?= 0.1.0
BIN := .venv/bin
PATHS := services tests tools benchmarks
STEP = @printf '\n== %s\n'
# Processes of pytest: two more than there are cores, at most eight, as each holds torch (tests/conftest.py). The tests
# of `make check` do not wait: one a core.
WORKERS ?= auto
PARALLEL := -n $(WORKERS) --dist worksteal
# What `make test` leaves to `make test-all`.
LONG := extended or cluster or observability
# .venv and the checkout keep compiled bytecode, also where the machine's image forbids it: a process that imports torch
# starts in half of the CPU time (3.0 s instead of 6.0), and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=
# The pinned pyright comes with its node from the locks; it is not to look for newer ones.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help run check test test-all install install-dev lint format types types-changed contracts generate drift chart k8s vllm trl trackers libraries site \
  observability pytest pytest-quick pytest-parallel pytest-platforms pytest-all e2e images push sim bench lock clean
# tools/run_steps.py runs at the same time what may; everything else shares .venv and one terminal.
.NOTPARALLEL:

help: ## list the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

run: install ## train: installs, starts every service, ends with a summary (RUN=runs/arithmetic.yaml, ARGS="--for 60s")
	@$(BIN)/tidegate up $(RUN) $(ARGS)

check: install-dev ## a quick answer, in 2 minutes on two cores: lint, contracts, types, unit and structure tests
	@$(BIN)/python tools/run_steps.py types-changed pytest-quick contracts lint

test: install-dev ## what CI runs, in 12 minutes on two cores: check in full, drift, simulation, integration, e2e tests
	@$(BIN)/python tools/run_steps.py --stream pytest-parallel pytest-platforms pytest-parallel types contracts lint drift

test-all: install-dev ## everything: test, and long kills, chaos runs, more seeds, vLLM, cluster, observability
	@$(BIN)/python tools/run_steps.py types contracts lint drift
	@$(MAKE) --no-print-directory pytest-all

install: ## install what a run needs into .venv (nothing to do: a tenth of a second)
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "tidegate: there is no $(PYTHON) here: install Python 3.11 or newer and run make again." >&2; exit 1; }
	@$(PYTHON) tools/install.py runtime

install-dev: ## install what the tests need as well
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "tidegate: there is no $(PYTHON) here: install Python 3.11 or newer and run make again." >&2; exit 1; }
	@$(PYTHON) tools/install.py dev

lint: install-dev ## ruff's rules and format, buf's rules for the protos
	$(STEP) "lint: ruff check"
	@$(BIN)/ruff check $(PATHS)
	$(STEP) "format: ruff format --check"
	@$(BIN)/ruff format --check $(PATHS)
	$(STEP) "protos: buf lint"
	@$(BIN)/buf lint

format: install-dev ## rewrite the sources as ruff would have them
	@$(BIN)/ruff check --fix $(PATHS)
	@$(BIN)/ruff format $(PATHS)

types: install-dev ## pyright, strict
	$(STEP) "types: pyright, strict"
	@$(BIN)/pyright

types-changed: install-dev
	$(STEP) "types: pyright, strict, on what changed since it passed here or at origin"
	@$(BIN)/python tools/check_types.py

contracts: install-dev ## the layers of the packages, as import contracts
	$(STEP) "contracts: lint-imports"
	@$(BIN)/lint-imports --no-logo

generate: install-dev ## regenerate services/tidegate/v1 from protos/
	@$(BIN)/python tools/generate.py

chart: install-dev ## regenerate the chart's schema, README's table, permissions, rules and dashboards from the types
	@$(BIN)/python tools/chart_schema.py
	@$(BIN)/python tools/chart_readme.py
	@$(BIN)/python tools/chart_presets.py
	@$(BIN)/python tools/chart_permissions.py
	@$(BIN)/python -m tools.operator_chart
	@$(BIN)/python -m tools.monitoring.generate

k8s: install-dev ## regenerate k8s/ from renders of the chart
	@$(BIN)/python -m tools.chart_kustomize

vllm: install-dev ## install vLLM for CPUs into .build/vllm (6 GB): the tests of its engine run, and actor.server.python has it
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .build/vllm
	@$(BIN)/uv pip sync --python .build/vllm/bin/python --require-hashes --no-build locks/vllm.txt

trackers: install-dev ## add MLflow, W&B and Trackio to .venv (300 MB): `tidegate track` and `track:` have them
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --no-build -r locks/trackers.txt

libraries: install-dev ## add verifiers to .venv (200 MB): its environments can be named, and their tests run
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --no-build -r locks/libraries.txt

trl: install-dev ## install TRL into .build/trl (5 GB): the peer of `make bench ARGS=trl`
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .build/trl
	@$(BIN)/uv pip sync --python .build/trl/bin/python --require-hashes --no-build locks/trl.txt

site: install-dev ## build the documents as a site in .build/site-html (links and anchors are checked)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .build/site
	@$(BIN)/uv pip sync --quiet --python .build/site/bin/python --require-hashes --no-build locks/site.txt
	@$(BIN)/python tools/site/build.py

observability: ## build the collector and the trace store that `pytest -m observability` runs against (needs go)
	@sh tools/observability/build.sh

drift: install-dev ## check that generated files match their sources: protocol code, the chart's schema and texts, rules
	$(STEP) "drift: services/tidegate/v1 against protos/"
	@$(BIN)/python tools/generate.py --check
	$(STEP) "drift: helm/tidegate against the types and catalogues (tests/chart holds k8s/ to the chart)"
	@$(BIN)/python tools/chart_schema.py --check
	@$(BIN)/python tools/chart_readme.py --check
	@$(BIN)/python tools/chart_presets.py --check
	@$(BIN)/python tools/chart_permissions.py --check
	@$(BIN)/python -m tools.operator_chart --check
	@$(BIN)/python -m tools.monitoring.generate --check

pytest: install-dev ## the tests that ARGS selects, one after the other (ARGS="-k lag")
	$(STEP) "tests: pytest"
	@$(BIN)/python -m pytest $(ARGS)

pytest-quick: install-dev
	$(STEP) "tests: unit and structure, 20 examples a property"
	@$(BIN)/python -m pytest -q $(PARALLEL:auto=logical) --maxprocesses=8 --hypothesis-profile=quick -m "not extended and not slow" tests/unit tests/structure

pytest-parallel: install-dev
	$(STEP) "tests: all but those that start whole platforms"
	@$(BIN)/python -m pytest $(PARALLEL) -m "not e2e and not ($(LONG))"

# A platform is ten processes, and its tests kill them: one after the other. They wait half of the time, so `make test`
# runs them beside the others (two runs of pytest do not share a cache).
pytest-platforms: install-dev
	$(STEP) "tests: whole platforms, killed and audited"
	@$(BIN)/python -m pytest -o cache_dir=.pytest_cache/platforms -m "e2e and not ($(LONG))" tests/e2e

pytest-all: install-dev
	$(STEP) "tests: all but those that start whole platforms, vLLM or a cluster; other examples of each property, and more"
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=explore -m "not e2e and not ($(LONG))"
	$(STEP) "tests: whole platforms, long kills and chaos runs, vLLM, cluster, observability"
	@$(BIN)/python -m pytest -m "e2e or $(LONG)"

e2e: install-dev ## the platform on the cluster of KUBECONFIG, in namespaces of its own; its images must be there (TAG)
	@$(BIN)/python tools/e2e.py "$(TAG)" $(ARGS)

push: ## push the images to REGISTRY: make images push REGISTRY=registry.example/rl/
	@test -n "$(REGISTRY)" || { echo "make push: name the registry that you push to: REGISTRY=registry.example/rl/" >&2; exit 2; }
	@set -e; for image in $(IMAGES); do $(BUILDER) push $(REGISTRY)tidegate-$$image:$(TAG); done

images: ## build the images (BUILDER=docker REGISTRY=registry.example/rl/ TAG=0.1.0; IMAGES=actor-vllm: vLLM for CUDA; IMAGES=operator)
	@set -e; for image in $(IMAGES); do \
	  stage=$$image; if [ "$$image" = light ]; then stage=base; fi; \
	  $(BUILDER) build --file Containerfile --target $$stage $(BUILD_ARGS) --tag $(REGISTRY)tidegate-$$image:$(TAG) .; \
	done

sim: install ## replay a simulated run of the cluster: make sim SEED=7
	@$(BIN)/tidegate sim $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: install ## measure against plain peers, print ratios, keep a JSON
	@$(BIN)/python -m benchmarks $(ARGS)

lock: install-dev ## resolve locks/ again from pyproject.toml (ARGS=--upgrade for the newest versions)
	@sh tools/lock.sh $(BIN)/uv $(ARGS)

clean: ## remove .venv and what the tools cached; runs and their data stay
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find services tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
