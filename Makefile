# Each target does its own set-up on a fresh machine. PYTHON chooses the interpreter.
PYTHON ?= python3
export PYTHON
export CCACHE_NOHASHDIR := 1
BIN := .venv/bin
.DEFAULT_GOAL := build
.PHONY: build
build: ## .venv with the tools, and the package built into it in place
	@scripts/system_packages.sh build
	@scripts/build.sh
