# Every target makes .venv itself. uv is used where it is installed, plain venv + pip otherwise.
PYTHON ?= python3
BIN := .venv/bin
PLAN ?= examples/agentic-h20.toml
OUT ?= out/plan
JOBS ?= 2

.PHONY: plan test lint validate bench accuracy clean

.venv/.runtime: pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) .venv && uv pip install --quiet --python $(BIN)/python -e .; \
	else \
	  $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check -e .; \
	fi
	@touch $@

.venv/.dev: .venv/.runtime
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python --group dev; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1" && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev; \
	fi
	@touch $@

plan: .venv/.runtime
	$(BIN)/splitpoint plan $(PLAN) --out $(OUT)

test: .venv/.dev
	$(BIN)/python -m pytest -n $(JOBS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Checks against ../shared (real logs, traces, published studies); each is skipped where it is absent.
validate: .venv/.dev
	$(BIN)/python -m pytest validate -n $(JOBS)

# PEER: an interpreter that has ai-dynamo and vllm-sr-sim, to run them side by side.
bench: .venv/.dev
	$(BIN)/python -m benchmarks.simulate_speed $(if $(PEER),--peer $(PEER))

# Measured rows of the aic extra's wheel (and ../shared) against the prediction, into docs/accuracy.md.
# ARGS=--held-out takes the test rows instead: once a release.
accuracy: .venv/.dev
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python -e ".[aic]"; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[aic]"; \
	fi
	$(BIN)/python -m benchmarks.accuracy --write --jobs $(JOBS) $(ARGS)

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
