# One command per intention; CI runs the same ones.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart ui test test-slow lint clean

quickstart: .venv/installed  ## a small private sweep on this machine, in minutes
	$(BIN)/sweep run quickstart

ui: .venv/installed  ## the MLflow UI on its results
	$(BIN)/sweep ui

test: .venv/installed-dev lint  ## lint, types, tests
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: .venv/installed-dev  ## the tests that take minutes
	$(BIN)/pytest -m slow

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## the environment and caches; results stay
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	@echo "Installing PyTorch, Ray, MLflow and the rest; about two minutes and 7 GB."
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/installed-dev: pyproject.toml | .venv/bin/python
	@echo "Installing PyTorch, Ray, MLflow, the test tools and the rest; about two minutes and 7 GB."
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@ .venv/installed
