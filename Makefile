# Four words: run, test, lint, bench. Each sets itself up on first use; afterwards none needs a network.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 8501

.PHONY: help run test lint format bench browser record-demo clean

help:
	@echo "make run    the dashboard on the sample runs, at http://127.0.0.1:$(PORT) (PORT=... to change)"
	@echo "make test   all tests; installs Debian's chromium for the browser tests where it may"
	@echo "make lint   ruff check, ruff format --check, mypy"
	@echo "make bench  speed of the replay core and of the pages; how well the samples are predicted"
	@echo "make record-demo  a toy model on vLLM's CPU build, recorded for two minutes and checked (600 MB, once)"

$(STAMP): pyproject.toml requirements.lock scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

run: $(STAMP)
	@$(BIN)/gapscope serve --port $(PORT)

browser: $(STAMP)
	@scripts/browser.sh

test: browser
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.replay_speed
	@$(BIN)/python -m benchmarks.page_latency
	@$(BIN)/python -m benchmarks.prediction

# LANES, BLOCKS, DURATION, NAME, STORE, OPTIONS and more: scripts/record_demo/demo.sh says what can be set.
record-demo: $(STAMP)
	@scripts/record_demo/demo.sh $(BIN)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
