# Everything from a clean clone: `make demo`, `make test`. Needs Python 3.11+ and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# torch goes first and exactly: a range would pull the CUDA builds, gigabytes of them.
TORCH  := torch==2.13.0

.PHONY: demo test test-processors test-wheel fast-test lint docs bench attack browser clean

$(READY): pyproject.toml requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m anchorhead.lab.demo -o demo
	$(BIN)/anchorhead explore -o demo/explore.html
	rm -rf demo/report
	$(BIN)/anchorhead reproduce --quick -o demo/report

test: $(READY) browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

# What could depend on the processor, as on three of them (tests/processors.py).
test-processors: $(READY)
	$(BIN)/python tests/processors.py

# The package as it is published: built, installed in environments of its own, each extra by itself (tests/wheel.py).
test-wheel: $(READY)
	$(BIN)/python tests/wheel.py

fast-test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not heavy"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site: build/site/index.html, which needs no server. The report of the experiments is made first, unless REPORT names
# the folder of one: half an hour, or minutes with `make docs QUICK=--quick`; a stopped or finished one goes on where it was.
REPORT  ?= build/report
EXPLORE ?= build/explore.html
docs: $(READY)
	test -f $(REPORT)/report.html || $(BIN)/anchorhead reproduce $(QUICK) -o $(REPORT)
	$(BIN)/anchorhead explore -o $(EXPLORE)
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" REPORT=$(REPORT) EXPLORE=$(EXPLORE) $(BIN)/mkdocs build
	@echo "open build/site/index.html"

bench: $(READY)
	$(BIN)/python -m benchmarks

# An hour by default; goes on where attack-state.jsonl ends. Other times, seeds and kinds: python -m attack --help
attack: $(READY)
	$(BIN)/python -m attack

# The interactive page is tested in a real browser; where none can be installed those tests are skipped.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null \
	|| echo "chromium and chromedriver could not be installed: the tests of the interactive page will be skipped"

clean:
	rm -rf $(VENV) demo build dist
