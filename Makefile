# `make` lists the targets. Each works on a new checkout and needs only python3 >= 3.11 with pip.
UV := .ci/uv
RUN := $(UV) run --no-sync

.DEFAULT_GOAL := help
.PHONY: help install demo test soak bench lint format typecheck docs

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

install: ## fetch uv and the locked dependencies into the checkout (every other target does this first)
	@test -d .venv || echo "First run: fetching the dependencies, about 1.3 GB on disk"
	@$(UV) sync --locked --quiet

demo: install ## show the memory: a service, a conversation, and what is recalled later
	@$(RUN) threefold demo

test: install ## run every test, on SQLite and on a real Postgres
	@$(RUN) pytest -n 2 --dist loadgroup

soak: install ## run the service under load and faults for a while, and check that nothing is lost
	@$(RUN) python -m benchmarks.soak

bench: install ## measure speed and recall quality
	@$(RUN) python -m benchmarks

lint: install ## check lock file, style, formatting and types
	@$(UV) lock --check --quiet
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(RUN) pyright

format: install ## format the code
	@$(RUN) ruff check --fix
	@$(RUN) ruff format

typecheck: install ## check types only
	@$(RUN) pyright

docs: install ## run every example of README.md and docs/
	@$(RUN) pytest tests/docs
