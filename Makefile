# Two commands matter: `make demo` and `make test`. Both make their own environment and need only
# GNU make and a Python of 3.11 or later. Nothing here starts, stops or reconfigures a service of this machine.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test simulate bench lint test-all clean redis-server
SHELL := /bin/sh

# What to pass on: make test ARGS="-k breaker", make demo ARGS="--store redis://… --ledger postgresql://…".
ARGS ?=
# Which Python makes the environments: make test PYTHON=python3.13. Empty: the first that fits.
PYTHON ?=
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14 python

DEV := .venv
DEMO := .venv-demo
PEERS := .venv-peers
PIP := -m pip --disable-pip-version-check install -qq
PYTEST := -m pytest -n logical --dist worksteal

# sets $$python to a Python of 3.11 or later that can make environments, or says what to install
define find_python
python=; for each in $(or $(PYTHON),$(PYTHONS)); do \
	if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$each; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "No Python of 3.11 or later was found among: $(or $(PYTHON),$(PYTHONS)). Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
fi; \
if ! $$python -c 'import venv, ensurepip' >/dev/null 2>&1; then \
	echo "$$python cannot make environments: venv or ensurepip is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
fi
endef

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(DEMO)/installed$(if $(strip $(ARGS)),-all)  ## two workers, a paused holder, a store taken away (ARGS="--store URL --ledger URL": on your servers)
	@$(DEMO)/bin/claimant demo $(ARGS)

test: $(DEV)/installed redis-server  ## the whole suite on real servers (ARGS="-k name" and the like)
	@echo "test: running the suite"
	@$(DEV)/bin/python $(PYTEST) $(ARGS)

simulate: $(DEV)/installed  ## search seeded schedules of faults (ARGS="--schedules 200000 --report")
	@echo "simulate: the shipped decisions in virtual time"
	@$(DEV)/bin/claimant simulate $(ARGS)

bench: $(DEV)/installed $(PEERS)/installed  ## the speed table, beside peers and the floor (ARGS="--json FILE --rounds 60")
	@echo "bench: starting servers of its own and measuring, a few minutes; leave the machine alone meanwhile"
	@$(DEV)/bin/python bench/run.py --peers $(PEERS)/bin/python $(ARGS)

lint: $(DEV)/installed  ## ruff, mypy, pyright: all of them, also when one finds something
	@export PYRIGHT_PYTHON_IGNORE_WARNINGS=1; bin=$(DEV)/bin; status=0; \
	try() { echo "lint: $$*"; "$$bin/$$@" || status=1; }; \
	try ruff check .; \
	try ruff format --check .; \
	try mypy; \
	if $$bin/pyright --version >$(DEV)/pyright.log 2>&1; then try pyright --pythonpath $$bin/python; else \
		cat $(DEV)/pyright.log >&2; status=1; \
		echo "lint: pyright could not start. It runs on Node.js: its own comes with the extra pyright[nodejs] (see dev in pyproject.toml); without that it takes the one on PATH, and without that it tries to download one." >&2; \
	fi; exit $$status

test-all: redis-server  ## the suite on each of 3.11, 3.12, 3.13 that this machine has
	@status=0; ran=0; for version in 3.11 3.12 3.13; do \
		python=; for each in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version*/bin/python; do \
			if "$$each" -c 'import sys' >/dev/null 2>&1; then python=$$each; break; fi; \
		done; \
		if [ -z "$$python" ]; then echo "test-all: no Python $$version here, passed over"; continue; fi; \
		echo "test-all: Python $$version"; ran=1; \
		$(MAKE) --no-print-directory test DEV=.venv-$$version PYTHON="$$python" || status=1; \
	done; \
	if [ $$ran = 0 ]; then echo "test-all: none of 3.11, 3.12, 3.13 was found" >&2; exit 1; fi; exit $$status

clean:  ## remove the environments and what the tools left
	rm -rf .venv .venv-demo .venv-peers .venv-3.* build dist htmlcov .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +

# The demo's environment holds the core package alone; servers of your own need the clients as well.
$(DEMO)/installed: EXTRAS =
$(DEMO)/installed-all: EXTRAS = [all]
$(DEMO)/installed $(DEMO)/installed-all: pyproject.toml
	@$(find_python); \
	echo "demo: making the environment $(DEMO) ($$($$python --version)) and installing claimant$(EXTRAS)"; \
	[ -x $(DEMO)/bin/python ] || $$python -m venv $(DEMO)
	@$(DEMO)/bin/python $(PIP) -e '.$(EXTRAS)'
	@touch $@

$(DEV)/installed: pyproject.toml
	@$(find_python); \
	echo "test: making the environment $(DEV) ($$($$python --version)) and installing claimant[dev] (about 500 MB on disk: real servers and the checkers are in it)"; \
	[ -x $(DEV)/bin/python ] || $$python -m venv $(DEV)
	@$(DEV)/bin/python $(PIP) -e '.[dev]'
	@touch $@

# What others measure up to, in an environment of its own: their versions are not ours to pin or to be pinned by.
$(PEERS)/installed:
	@$(find_python); \
	echo "bench: making the environment $(PEERS) ($$($$python --version)) and installing redis, hiredis, python-redis-lock"; \
	[ -x $(PEERS)/bin/python ] || $$python -m venv $(PEERS)
	@$(PEERS)/bin/python $(PIP) redis hiredis python-redis-lock
	@touch $@

# A second server of the Redis family, from the distribution. The policy file keeps the package from starting
# a service on the well-known port; it is taken away again only if it was put there here.
redis-server:
	@if command -v redis-server >/dev/null 2>&1 || [ -x /usr/bin/redis-server ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "test: installing redis-server with apt-get (its service is not started)"; \
		policy=/usr/sbin/policy-rc.d; ours=; \
		if [ ! -e $$policy ]; then ours=1; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; fi; \
		trap '[ -z "$$ours" ] || rm -f $$policy' EXIT; trap 'exit 130' INT TERM; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get -o DPkg::Lock::Timeout=120 -qq update && \
		  apt-get -o DPkg::Lock::Timeout=120 -qq install -y --no-install-recommends redis-server; } >/dev/null </dev/null || \
		echo "test: redis-server could not be installed; the tests that need it are skipped, or fail where CI is set" >&2; \
	else \
		echo "test: no redis-server here; the tests that need it are skipped (Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis)" >&2; \
	fi
