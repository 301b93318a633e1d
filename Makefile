# The developer's entry points. Everything else is in scripts/ and `cargo xtask`.
#
# A bare Debian (12 or newer) with `make` is enough: each target installs missing packages through
# apt-get, as root or with sudo.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo check test models miri crash ace exercise fsx lint bench-read bench-write bench-f2fs bench-f2fs-clean bench-mount bench-direct bench-scale bench-trees bench-uncached fuzz fuzz-write damaged-trees

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 24

setup: ## Install the packages for building, testing and linting
	@scripts/setup build test lint

build: ## Build the release binary, target/release/bifolio
	@scripts/setup build
	@source scripts/lib.sh && cargo build --release --locked --package bifolio

demo: ## Create images, mount them, copy files out of them, compare
	@scripts/demo

check: ## Run the tests that a change most likely breaks, by the files that differ from BASE (HEAD)
	@scripts/check

test: ## Run all tests, and `models`
	@scripts/test

models: ## Model-check the lock-free parts of the page cache with loom
	@scripts/models

miri: ## Check the page cache's tests for undefined behaviour (needs a nightly Rust with Miri)
	@scripts/miri

# The long targets: a day for each suite.
LONG := --minutes-max 1440

CRASH_FACTOR ?= 20
CRASH_SEED ?= 1
crash: ## Check CRASH_FACTOR times as many power cuts as the tests, from the seed CRASH_SEED on
	@BIFOLIO_CRASH_FACTOR=$(CRASH_FACTOR) BIFOLIO_CRASH_SEED=$(CRASH_SEED) scripts/test $(LONG) --release --package bifolio-ext4 --package bifolio-vfs --package bifolio-testkit --test crash --test f2fs_unclean

EVERY ?= 1
ace: ## Check power cuts in all sequences of two operations and syncs (EVERY=N: in one of N), of ext4 and f2fs
	@BIFOLIO_ACE_EVERY=$(EVERY) scripts/test $(LONG) --release --package bifolio-vfs --test ace

OPERATIONS ?= 200000
SEED ?= 1
exercise: ## Run OPERATIONS random operations, chosen by SEED, on files of several kinds of volumes, and on mounts
	@BIFOLIO_EXERCISE_OPERATIONS=$(OPERATIONS) BIFOLIO_EXERCISE_SEED=$(SEED) scripts/test $(LONG) --release --package bifolio-vfs --package bifolio --test exercise --test mount_exercise

FSX_FACTOR ?= 8
fsx: ## Run fsx with FSX_FACTOR times 25,000 operations on mounts, with blocks of 1, 4 and 64 KiB and a small cache
	@BIFOLIO_SOAK_FACTOR=$(FSX_FACTOR) scripts/test $(LONG) --release --package bifolio --test mount_suites -- fsx

lint: ## Run clippy and rustdoc (warnings denied), rustfmt, tidy, layers and cargo-deny
	@scripts/lint

ROWS ?=
bench-read: ## Measure reads against the kernel and memcpy (ROWS: parts of rows' names)
	@scripts/bench bench-read $(ROWS)

bench-write: ## Measure writes against the kernel and fuse2fs (ROWS: parts of rows' names)
	@scripts/bench bench-write $(ROWS)

bench-f2fs: ## Measure writes of f2fs by folio order, in the tables of the series of patches (ROWS: parts of rows' names)
	@scripts/bench bench-f2fs $(ROWS)

bench-f2fs-clean: ## Measure overwrites of nearly full f2fs volumes, beside textbook cleaning (ROWS: parts of rows' names)
	@scripts/bench bench-f2fs-clean $(ROWS)

bench-mount: ## Measure reads through mounts against the kernel and fuse2fs (ROWS: parts of rows' names)
	@scripts/bench bench-mount $(ROWS)

bench-trees: ## Measure programs on trees of small files on mounts, on an idle and on a busy machine (ROWS: idle, busy)
	@scripts/bench bench-trees $(ROWS)

bench-uncached: ## Measure uncached streams (ROWS: parts of rows' names, seconds=N, cache=MIB)
	@scripts/bench bench-uncached $(ROWS)

bench-direct: ## Measure direct writes by lock, split and block size, against the device, and asynchronous ones on mounts (ROWS: parts of rows' names)
	@scripts/bench bench-direct $(ROWS)

bench-scale: ## Measure the cost per file, name, extent and others, with 10^3 to 10^5 of them (ROWS: parts of rows' names, max=N, cpu)
	@scripts/bench bench-scale $(ROWS)

SECONDS_EACH ?= 60
fuzz: ## Run each fuzz target for SECONDS_EACH (needs a nightly Rust)
	@scripts/fuzz $(SECONDS_EACH)

WRITE_FACTOR ?= 50
WRITE_SEED ?= 0
fuzz-write: ## Damage and write WRITE_FACTOR times as many images as the tests, from the seed WRITE_SEED on, and what `fuzz` has found
	@BIFOLIO_SOAK_FACTOR=$(WRITE_FACTOR) BIFOLIO_TEST_SEED=$(WRITE_SEED) BIFOLIO_FUZZ_CORPUS=$(CURDIR)/fuzz/corpus scripts/test $(LONG) --release --package bifolio --test hostile_ext4_writing --test hostile_f2fs_writing

TREES_FACTOR ?= 75
TREES_SEED ?= 0
damaged-trees: ## Compare the trees of TREES_FACTOR times as many damaged images as the tests with Linux's, from the seed TREES_SEED on
	@BIFOLIO_SOAK_FACTOR=$(TREES_FACTOR) BIFOLIO_TEST_SEED=$(TREES_SEED) scripts/test $(LONG) --release --package bifolio --test damaged_trees
