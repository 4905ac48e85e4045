# Settings, on the command line or in the environment:
#   PYTHON=python3.12    the interpreter that .venv is made with
#   PIP_ARGS='...'       more arguments for pip, such as an index of your own
#   UV_ARGS='...'        more arguments for uv, which makes the environments of `make oldest` and `make newest`
#   AUDIT_ARGS='...'     more arguments for pip-audit, such as --ignore-vuln ID for what does not concern us
#   TORCH=2.13.0         the version of torch that `make pins` pins, in place of the present one
#   SWEEP=sweeps/x.yaml  the sweep that `make study` launches
#   RESULTS=results/x    the folder that `make dashboard` shows
#   WORKERS=4            processes (2 unless given) that run the tests, or write the reference
#   CHINCHILLA=x.csv     Epoch's points of Chinchilla's figure, for `make replicate`
PYTHON ?= python3
PIP_ARGS ?=
UV_ARGS ?=
AUDIT_ARGS ?=
SWEEP ?= sweeps/depth_or_width.yaml
RESULTS ?= results
WORKERS ?= 2
CHINCHILLA ?=

# The files of requirements/ list all that is installed, with hashes; wheels alone, so that no build fetches anything else.
LOCKED = --no-deps --require-hashes --only-binary :all:
PIP_INSTALL = .venv/bin/python -m pip install $(PIP_ARGS)
# Bytecode is written whatever the environment says: without it every process that a test starts compiles the package anew.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
RESOLUTION_oldest = lowest-direct
RESOLUTION_newest = highest
CHECK_VERSION = import sys; sys.version_info >= (3, 11) or sys.exit("scaling-study needs Python 3.11 or newer, not %d.%d; \
  name another one, as in: make install PYTHON=python3.12" % sys.version_info[:2])

.DEFAULT_GOAL := help
.PHONY: help install study test slow fuzz faults lint dashboard notebooks docs dist replicate bench latency reference reference-check oldest newest \
  audit pins

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "make %-17s%s\n", $$1, $$2 }' Makefile

install: .venv/.installed ## make .venv with the pinned versions of what running needs

study: install ## run a sweep, depth_or_width or SWEEP, and write its answer
	.venv/bin/study launch $(SWEEP)

test: .venv/.installed-dev ## run the fast tests
	$(PYTEST) -m "not slow and not faults"

slow: .venv/.installed-dev ## run the tests that take long
	$(PYTEST) -m "slow and not faults"

fuzz: .venv/.installed-dev ## read made-up files, numbers and overrides for a long time
	$(PYTEST) -m fuzz --hypothesis-profile=fuzz

faults: .venv/.installed-dev ## kill, stop, starve and damage sweeps in every way, and print what held
	$(PYTEST) tests/faults

dashboard: .venv/.installed-dev ## show all sweeps of a results folder, results or RESULTS, in a browser
	.venv/bin/study dashboard '$(RESULTS)'

notebooks: .venv/.installed-dev ## execute the notebooks of analysis/ and write them as .ipynb with their figures
	.venv/bin/python -c 'import pathlib, study.report.notebooks as notebooks; \
	  notebooks.execute(sorted(pathlib.Path("analysis").glob("*.py")))'

docs: .venv/.installed-dev ## build the documentation into build/docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet --strict

dist: .venv/.installed-dev ## build wheel and source distribution into dist
	.venv/bin/python -m hatchling build --target wheel --target sdist

replicate: .venv/.installed ## fit published scaling studies again, into results/replications
	.venv/bin/study replicate $(if $(CHINCHILLA),--chinchilla $(CHINCHILLA))

bench: .venv/.installed-dev ## measure training speed and all else that should be fast, into results/bench
	.venv/bin/study bench

latency: .venv/.installed ## measure the latency table of this machine in fp32 and int8, into results/latency
	.venv/bin/study latency --models bert-tiny,bert-mini,bert-small,bert-medium,bert-base --shapes 2x256,8x128 --precision fp32,int8

reference: .venv/.installed ## write the committed answers and figures anew from their records
	dirname results/reference/*/sweep.yaml | OMP_NUM_THREADS=1 xargs -P $(WORKERS) -n 1 .venv/bin/study report > /dev/null
	.venv/bin/python -c 'import sys, pathlib, study.plotting.model_figures as figure; \
	  [figure.write_latency(pathlib.Path(table)) for table in sys.argv[1:]]' results/reference/latency/*/table.csv

reference-check: reference ## write them anew, and fail where they differ from what is committed
	git diff --exit-code --stat -- results/reference

lint: .venv/.installed-dev ## check style, format and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

oldest newest: .venv/tools/.installed ## run the fast tests with the oldest or newest versions that pyproject.toml allows
	.venv/tools/bin/uv venv --quiet --clear --python $(PYTHON) .venv/$@
	.venv/tools/bin/uv pip install $(UV_ARGS) --python .venv/$@ --resolution $(RESOLUTION_$@) -e '.[dev]'
	$(subst .venv/bin,.venv/$@/bin,$(PYTEST)) -m "not slow and not faults"

audit: .venv/tools/.installed ## look the pinned versions up among known vulnerabilities; needs the network
	.venv/tools/bin/pip-audit --vulnerability-service osv --no-deps --disable-pip $(AUDIT_ARGS) \
	  $(patsubst %,--requirement %,$(wildcard requirements/*.txt)) || { \
	  echo "Some pins are known to be vulnerable, or https://api.osv.dev cannot be reached: see above." >&2; exit 1; }

pins: .venv/tools/.installed ## pin the newest versions that pyproject.toml allows, with hashes, in requirements/
	.venv/tools/bin/python .ci/pin.py

.venv/tools/.installed: requirements/tools.txt | .venv/.python
	$(PYTHON) -m venv .venv/tools
	.venv/tools/bin/python -m pip install $(PIP_ARGS) $(LOCKED) -r $<
	@touch $@

.venv/.python:
	@$(PYTHON) -c '$(CHECK_VERSION)'
	$(PYTHON) -m venv .venv
	@touch $@

# torch is fetched alone: where hashes choose among builds, pip passes over files without an index, such as those of --find-links.
# A build that is there already, from whatever index, is kept.
.venv/.torch: requirements/torch.txt | .venv/.python
	torch=$$(sed -n 's/^\(torch==[^ ]*\) .*/\1/p' $<); .venv/bin/python -m pip freeze | grep "^$$torch\(+.*\)\?$$" || { \
	  .venv/bin/python -m pip download $(PIP_ARGS) --no-deps --only-binary :all: --dest .venv/torch $$torch && \
	  $(PIP_INSTALL) $(LOCKED) --no-index --find-links .venv/torch -r $< && rm -r .venv/torch; }
	@touch $@

# PyPI's torch for Linux needs CUDA libraries, which pip check names; a build for a CPU, or one that brings its own, does not.
.venv/.installed: pyproject.toml requirements/core.txt requirements/cuda.txt .venv/.torch
	$(PIP_INSTALL) $(LOCKED) -r requirements/core.txt
	if .venv/bin/python -m pip check | grep '^torch '; then $(PIP_INSTALL) $(LOCKED) -r requirements/cuda.txt; fi
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/.installed-dev: .venv/.installed requirements/extras.txt requirements/dev.txt
	$(PIP_INSTALL) $(LOCKED) -r requirements/extras.txt -r requirements/dev.txt
	.venv/bin/python -m pip check
	@touch $@
