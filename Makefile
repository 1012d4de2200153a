# All targets that a person needs. CI calls only these.
.DEFAULT_GOAL := help
.PHONY: help setup dev demo test soak check docs format bench exact poison chaos stories cluster lock sbom dist pictures clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FOUR   := --stream metrics --stream calls --stream sales --stream transactions
HOURS  ?= 8
# Without cached bytecode, each of the many Python processes would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
SEED   := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv to run lakehouse: locked packages and runtime jars; checks for Java
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV)

dev: ## Run setup with test and lint dependencies, and archive classes for faster starts
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV) dev
	@scripts/class_archive.sh $(VENV)

demo: setup ## Run the pipeline end to end on local services, and show the results
	@$(BIN)/lakehouse demo
	@scripts/class_archive.sh $(VENV) later

test: dev ## Run the tests, which start and stop their services (make soak runs the others)
	@scripts/browser.sh
	@scripts/prometheus.sh
	@scripts/redis.sh
	@scripts/postgres.sh
	@scripts/apicurio.sh $(VENV)
	@$(BIN)/python -m lakehouse.storage.spark.installing s3
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "not soak" $(ARGS)

soak: dev ## Run random, long or heavy tests; SEED=N repeats the cases of an earlier run
	@scripts/browser.sh
	@scripts/prometheus.sh
	@scripts/redis.sh
	@scripts/postgres.sh
	@scripts/apicurio.sh $(VENV)
	@$(BIN)/python -m lakehouse.storage.spark.installing s3
	@echo "soak: seed $(SEED)"
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "soak or cases" \
	  --timeout 0 --hypothesis-profile random --hypothesis-seed $(SEED) $(ARGS)

check: dev ## Lint; check format, strict types, import contracts, and the documentation's links and lengths
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >build/site.log 2>&1 || { cat build/site.log; exit 1; }

docs: dev ## Serve the documentation as a site, at http://127.0.0.1:8000, until Ctrl-C
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

format: dev ## Format the code and apply the linter's fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: dev ## Measure the pipeline and Kafka Streams side by side: catching up and live (about 25 minutes)
	@mkdir -p build
	@$(BIN)/python -m benchmarks.side_by_side warm --json build/warm-1m.json
	@$(BIN)/python -m benchmarks.side_by_side warm --events 3000000 --json build/warm-3m.json --plot build/warm-3m.png
	@$(BIN)/python -m benchmarks.side_by_side cold --rounds 1 --json build/cold-1m.json
	@$(BIN)/python -m benchmarks.side_by_side warm $(FOUR) --events 300000 --warmup 200000 --rounds 1 --json build/warm-four.json
	@$(BIN)/python -m benchmarks.live --peer --seconds 60 --json build/live.json --plot build/live.png
	@$(BIN)/python -m benchmarks.live $(FOUR) --rate 2500 --peer --seconds 60 --json build/live-four.json --plot build/live-four.png

exact: dev ## Send 600,000 events at 10,000/s and compare every window with an oracle (about 3 minutes)
	@$(BIN)/python -m benchmarks.exact

poison: dev ## Send 10,000 malformed records of 33 kinds and check every dead letter's rules (about a minute)
	@$(BIN)/python -m benchmarks.poison

chaos: dev ## Kill, stop and starve a pipeline under load for 15 minutes, then check it against the oracles
	@$(BIN)/python -m benchmarks.chaos $(ARGS)

stories: dev ## Run new stories of a small lake for HOURS=8, check each and shrink failures; SEED=N repeats a run
	@scripts/redis.sh
	@scripts/postgres.sh
	@scripts/apicurio.sh $(VENV)
	@echo "stories: seed $(SEED)"
	@$(BIN)/python -m tests.simulation --seed $(SEED) --stories 1000000 --minutes $$(( 60 * $(HOURS) )) \
	  --keep build/stories $(ARGS)

cluster: dev ## Run the four jobs on a standalone cluster, kill a worker, let drivers recover, check everything
	@$(BIN)/python -m benchmarks.chaos --way cluster --minutes 0 --fault "kill a worker inside a micro-batch" \
	  --fault "freeze bronze inside a micro-batch" --fault "freeze silver inside a micro-batch" \
	  --fault "freeze gold inside a micro-batch" --fault "freeze export inside a micro-batch" $(ARGS)

lock: dev ## Resolve requirements/*.in again into hash-locked requirements/*.txt, and the jars into checksums
	@scripts/lock.sh $(VENV)

sbom: dev ## Write the wheel's and the image's bills of materials (CycloneDX) to build/sbom
	@$(BIN)/python scripts/sbom.py build/sbom

pictures: dev ## Take pictures of all views of the live page, and run the notebooks, on a demo (ten minutes)
	@scripts/browser.sh
	@$(BIN)/python -m tests.support.pictures build/pictures docs/overview.png

dist: dev ## Build the source distribution and the wheel into build/dist, and try the wheel in an empty environment
	@scripts/dist.sh $(VENV)

clean: ## Remove everything that make has created here, except download caches and .lakehouse
	@rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
