# Two commands do everything:  make run   and   make test
# Both install what is missing (Debian, Ubuntu) and use sudo where root is needed.

SHELL := /bin/bash
CARGO ?= cargo
# Test binaries need root (namespaces, cgroups); building does not.
RUNNER := $(if $(filter 0,$(shell id -u)),,sudo -E)
RUNNER_VAR := CARGO_TARGET_$(shell uname -m | tr a-z- A-Z_)_UNKNOWN_LINUX_GNU_RUNNER

PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: help run stop test test-package test-vm test-vm-short fetch-vm lint bench bench-docs soak fuzz build install uninstall deb setup setup-test setup-bench clean

help:
	@echo "make run    build, start the daemon if none runs, run a first program in a sandbox"
	@echo "make stop   stop the daemon that make run started"
	@echo "make test   run every test (as root, on this kernel, nothing is skipped)"
	@echo "make test-vm  the package, the unit, Podman and the spawn, security and integration suites in an emulated machine with systemd and cgroup v2 (three quarters of an hour)"
	@echo "make install  into PREFIX=/usr/local below DESTDIR= (make build first); make uninstall takes it away"
	@echo "make deb    a Debian package, in target/debian"
	@echo "make test-package  what make install and the package contain, and the unit's exposure"
	@echo "make test-vm-short  of that the package, the unit and Podman: restarts, kills, a reboot and a power cut under load (ten minutes and the build)"
	@echo "make lint   formatting, clippy and docs, warnings denied"
	@echo "make bench  exec latency next to raw fork+exec and other sandboxes; cost of a decision and of evidence (six minutes;"
	@echo "            ARGS=--quick for a try)"
	@echo "make bench-docs  the same for exec alone, written into docs/performance.md and docs/bench.svg"
	@echo "make soak   100,000 execs (COUNT=), and whether anything grows"
	@echo "make fuzz   each fuzz target for SECONDS=30 (needs a nightly toolchain, or uses stable as one)"

run:
	@scripts/setup run
	@scripts/run

stop:
	@scripts/stop

build: setup
	$(CARGO) build --release --locked

install:
	@scripts/install "$(DESTDIR)" "$(PREFIX)"

uninstall:
	@scripts/install -r "$(DESTDIR)" "$(PREFIX)"

deb: build
	@scripts/deb

test-package: setup-test deb
	@tests/package

test: setup-test
	$(CARGO) build --locked --tests --bins
	$(if $(RUNNER),$(RUNNER_VAR)="$(RUNNER)") $(CARGO) test --locked

# Not part of make test: without KVM it takes its time. Fetches QEMU and a Debian image once (tests/vm/README.md).
test-vm: setup-test
	tests/vm/run

# The part that CI runs: the package, the unit and Podman, restarted, killed, booted anew and cut off from power, on cgroup v2.
test-vm-short: setup-test deb
	VM_DEB="$$(ls target/debian/*.deb)" $(RUNNER) tests/vm/run -t 2400 short

# QEMU and the image, which come over the network and need no build.
fetch-vm: setup-test
	$(RUNNER) tests/vm/run fetch

lint: setup
	$(CARGO) fmt --check
	rustfmt --check --edition 2024 build.rs src/isolation/child/main.rs # a crate of its own (build.rs)
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

BENCH := $(if $(RUNNER),$(RUNNER_VAR)="$(RUNNER)") $(CARGO) bench --locked
bench: setup-bench
	$(BENCH) --bench exec -- $(ARGS)
	$(BENCH) --bench policy --bench evidence

bench-docs: setup-bench
	$(BENCH) --bench exec -- --docs

COUNT ?= 100000
soak: setup-test
	$(BENCH) --bench exec -- --soak $(COUNT)

SECONDS ?= 30
fuzz: setup
	@scripts/fuzz $(SECONDS)

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

setup-bench:
	@scripts/setup bench

clean:
	$(CARGO) clean
