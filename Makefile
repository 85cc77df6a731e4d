# Oneblock: `make` lists what can be made.
#
# Environments are made where they are missing, incomplete, older than pyproject.toml, or moved with the checkout.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# PYTHON=path: the interpreter (default: the newest of 3.13, 3.12, 3.11 that works)
# ACCEL=cpu|cuda|cuda12|tpu: the build of jax (default: by the device that is seen)
# ARGS="...": further arguments of pytest or of the demo
# WORKERS=n: test processes; PARITY="...": what `make parity` runs
# BENCH="...": what `make bench` runs, of tests/bench/
# DRAWS=n: random settings of each family that `make soak` tries against the reference library
export PYTHON ACCEL TORCH_INDEX
WORKERS ?= 2
DRAWS ?= 20
BENCH ?= peak training finetuning decoding startup feeding growth
PARITY ?= tests/parity tests/zoo tests/train

python := .venv/bin/python
pytest := -m pytest -q -n $(WORKERS) --dist worksteal
stale = $(if $(shell .ci/environment stale $(1)),stale)

.PHONY: help test demo lint parity soak bench clean stale

help: ## this list
	@echo "usage: make TARGET [PYTHON=path] [ACCEL=cpu|cuda|cuda12|tpu] [ARGS=\"...\"]"
	@echo
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  %-8s %s\n' $$name "$$text"; done

test: .venv/.complete ## every test, offline once installed; ARGS="tests/zoo -k mask" for some
	@$(python) $(pytest) $(ARGS)

demo: .venv/.complete ## fetch, pre-train, fine-tune and report: runs/demo/report.html (ACCEL and ARGS apply)
	@$(python) -m eval demo $(ARGS)

lint: .venv/.complete ## ruff, the import contract, file lengths
	@.venv/bin/ruff check .
	@.venv/bin/lint-imports
	@$(python) -m pytest -q -n 0 tests/test_house.py

parity: .venv-parity/.complete ## against the reference library on Python 3.11, then the core tests on its older jax
	@.venv-parity/bin/python $(pytest) $(PARITY) $(ARGS)

soak: .venv/.complete .venv-parity/.complete ## by hand: 1.7 GB over eight devices, all meshes, 10,000 damaged files, random settings (DRAWS=n a family)
	@ONEBLOCK_SOAK=1 ONEBLOCK_SOAK_FUZZ=910 $(python) -m pytest -q -n 0 -s tests/soak tests/zoo/test_fuzz.py $(ARGS)
	@ONEBLOCK_SOAK_DRAWS=$(DRAWS) JAX_ENABLE_COMPILATION_CACHE=0 .venv-parity/bin/python $(pytest) tests/parity/test_random.py $(ARGS)

bench: .venv/.complete .venv-bench/.complete $(if $(filter training,$(BENCH)),.venv-bench-keras/.complete .venv-bench-x/.complete) ## by hand: speed against peers, turn and turn about (BENCH="finetuning decoding" ARGS="--rounds 3")
	@failed=0; for name in $(BENCH); do echo "$$name:"; $(python) tests/bench/$$name.py $(ARGS) || failed=1; done; \
		$(python) tests/bench/results.py && exit $$failed

clean: ## remove environments and caches; runs/ stays
	rm -rf .venv .venv-parity .venv-bench .venv-bench-keras .venv-bench-x .venv*.lock .venv*.log .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find zoo train eval tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.complete: pyproject.toml .ci/environment $(call stale,.venv)
	@.ci/environment make .venv test,tensorboard,plan

.venv-parity/.complete: pyproject.toml .ci/environment $(call stale,.venv-parity)
	@.ci/environment make .venv-parity parity 3.11

.venv-bench/.complete: pyproject.toml .ci/environment $(call stale,.venv-bench)
	@.ci/environment make .venv-bench parity,bench 3.11

.venv-bench-keras/.complete: pyproject.toml .ci/environment $(call stale,.venv-bench-keras)
	@.ci/environment make .venv-bench-keras bench-keras "3.13 3.12 3.11"

.venv-bench-x/.complete: pyproject.toml .ci/environment $(call stale,.venv-bench-x)
	@.ci/environment make .venv-bench-x bench-x 3.11

stale:
