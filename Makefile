# `make help` lists the targets. Every target installs what it needs; caches live outside the checkout (dev/cache.sh).
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Evaluated where it is used, so that `make help` installs nothing.
VENV = $(shell dev/setup.sh)
PYTEST = $(VENV)/bin/python -m pytest

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

##@ The main job
.PHONY: demo demo-down
demo: ## Do the whole job on a cluster of its own: cold about 25 minutes, warm about 10 (ENGINE=replay: a stand-in engine, 3 minutes)
	@$(VENV)/bin/python dev/demo/main.py

demo-down: ## Take the demonstration and its cluster away
	@$(VENV)/bin/python dev/demo/main.py --down

##@ Checks
.PHONY: lint format generate
lint: ## ruff, mypy --strict, import contracts, generated files are current, manifests are valid
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --cache-dir=$(VENV)/mypy-cache
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m tabletune_operator.schema --check
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/python dev/manifest-checks/check.py

format: ## Format the code
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

generate: ## Write crds/ and the chart's copy from the Python models
	$(VENV)/bin/python -m tabletune_operator.schema

.PHONY: test test-computing test-on-a-cluster test-unit test-api test-engine test-e2e test-chart test-kserve
# One side computes, the other mostly waits: side by side they take little more than the longer one. Output comes when a tier is done.
test: lint ## All tiers, on real parts (27 minutes warm on 2 cores)
	@echo "Side by side: the engine, api and unit tiers (20 minutes warm), and the chart and e2e tiers (27 minutes warm)"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-computing test-on-a-cluster

test-computing:
	@$(MAKE) --no-print-directory test-engine
	@$(MAKE) --no-print-directory test-api
	@$(MAKE) --no-print-directory test-unit

# In one run, which starts the cluster once.
test-on-a-cluster:
	$(PYTEST) tests/chart tests/e2e -m "not kserve"

test-unit: ## Pure parts and single processes
	$(PYTEST) tests/unit

test-api: ## A real API server: schema, CEL rules, RBAC
	$(PYTEST) tests/api -m "not kserve"

test-engine: ## Real vLLM on this machine's CPU: plugin, supervisor, tuner
	$(PYTEST) tests/engine

test-chart: ## The Helm chart: templates, schema, install and uninstall on a real cluster
	$(PYTEST) tests/chart

test-e2e: ## The whole way on a real cluster
	$(PYTEST) tests/e2e -m "not kserve"

test-kserve: ## With KServe's own controller, apart from `make test`: it is built first (5 minutes of a core's time)
	$(PYTEST) tests/api -m kserve
	$(PYTEST) tests/e2e -m kserve

##@ The cluster for development
.PHONY: cluster-up cluster-down
cluster-up: ## A real two-node Kubernetes on this machine
	dev/cluster/cluster up

cluster-down: ## Stop it
	dev/cluster/cluster down
