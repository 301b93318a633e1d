# The developer's entry points. Everything else is in scripts/ and `cargo xtask`.
#
# A bare Debian (12 or newer) with `make` is enough: each target installs what it misses through
# apt-get, as root or with sudo.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo test models miri crash exercise fsx lint bench-read bench-write bench-mount bench-direct bench-scale bench-trees bench-uncached fuzz

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: ## Install the packages for building, testing and linting
	@scripts/setup build test lint

build: ## Build the release binary, target/release/bifolio
	@scripts/setup build
	@source scripts/lib.sh && cargo build --release --locked --package bifolio

demo: ## Make images, mount them, copy them out, compare
	@scripts/demo

test: ## Run every test, and `models`
	@scripts/test

models: ## Model-check the lock-free parts of the page cache with loom
	@scripts/models

miri: ## Look for undefined behaviour in the page cache's tests (needs a nightly Rust with Miri)
	@scripts/miri

CRASH_FACTOR ?= 20
CRASH_SEED ?= 1
crash: ## Judge CRASH_FACTOR times as many power cuts as the tests do, from the seed CRASH_SEED on
	@BIFOLIO_CRASH_FACTOR=$(CRASH_FACTOR) BIFOLIO_CRASH_SEED=$(CRASH_SEED) scripts/test --release --package bifolio-ext4 --package bifolio-vfs --test crash

OPERATIONS ?= 200000
SEED ?= 1
exercise: ## Run OPERATIONS random operations, chosen by SEED, on files of ext4 volumes of several kinds, and on mounts
	@BIFOLIO_EXERCISE_OPERATIONS=$(OPERATIONS) BIFOLIO_EXERCISE_SEED=$(SEED) scripts/test --release --package bifolio-vfs --package bifolio --test exercise --test mount_exercise

FSX_FACTOR ?= 8
fsx: ## Run fsx with FSX_FACTOR times 25,000 operations on mounts: blocks of 1, 4 and 64 KiB, and a small cache
	@BIFOLIO_SOAK_FACTOR=$(FSX_FACTOR) scripts/test --release --package bifolio --test mount_suites -- fsx

lint: ## Clippy and rustdoc (warnings denied), rustfmt, tidy, layers, cargo-deny
	@scripts/lint

bench-read: ## Measure reading against the kernel and plain memory
	@scripts/bench bench-read

ROWS ?=
bench-write: ## Measure writing against the kernel and fuse2fs (ROWS: parts of rows' names)
	@scripts/bench bench-write $(ROWS)

bench-mount: ## Measure reading through mounts against the kernel and fuse2fs (ROWS as above)
	@scripts/bench bench-mount $(ROWS)

bench-trees: ## Measure programs on trees of small files on mounts, idle and beside busy loops (ROWS: idle, busy)
	@scripts/bench bench-trees $(ROWS)

bench-uncached: ## Measure streams that stay out of the cache (ROWS as above, or seconds=N cache=MIB)
	@scripts/bench bench-uncached $(ROWS)

bench-direct: ## Measure direct writes by lock and split, and by block size, against the bare device (ROWS)
	@scripts/bench bench-direct $(ROWS)

bench-scale: ## Measure the cost per file, name, extent … with 10^3 to 10^5 of them (ROWS, or max=N, or cpu)
	@scripts/bench bench-scale $(ROWS)

SECONDS_EACH ?= 60
fuzz: ## Fuzz every parser for SECONDS_EACH (needs a nightly Rust)
	@scripts/fuzz $(SECONDS_EACH)
