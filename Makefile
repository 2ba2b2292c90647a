# make demo   find the fault in a shipped pair of real dumps
# make test   run all tests; records fresh dumps with MindSpore and PyTorch, opens reports in Chromium (installed as root)
# make lint   style, format and types
# make docs   the site, built strictly, in site/
# make reference   writes the generated pages of docs/ again
# make dist   sdist and wheel, installed into an empty environment of each Python; demo, README and notebook run there
# make fuzz   mutated inputs of every reader, FUZZ_SECONDS (60) for each; failing ones become files of tests/fuzz/regressions
# make benchmark-localise   faults put in, recorded and looked for; writes docs/benchmarks.md (an hour)
# make benchmark-damage   one value damaged at a time; is it reported? writes docs/benchmarks.md (10 minutes)
# make benchmark-parallel   faults in runs of several processes; writes docs/benchmarks.md (two hours; megatron-core if it is on PYTHONPATH)
# Everything is installed into .venv from the package index; nothing else is needed but Python 3.10+ with venv.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
DEMO := .demo

.PHONY: demo test test-dump-path test-others browser lint docs reference fuzz benchmark-localise benchmark-damage benchmark-parallel dist clean

demo: .venv/core.stamp $(DEMO)/unpacked.stamp
	@echo 'dumpdiff align $(DEMO)/runs/mindformers/dump $(DEMO)/runs/megatron/dump -o $(DEMO)/result'
	@# The pair holds a fault, so the right exit code is 1 (diverged); any other, 0 included, is a failed demo.
	@$(BIN)/dumpdiff align $(DEMO)/runs/mindformers/dump $(DEMO)/runs/megatron/dump -o $(DEMO)/result; \
	status=$$?; if [ $$status -ne 1 ]; then echo "demo: exit code $$status, expected 1" >&2; exit 1; fi
	@echo
	@echo 'The injected fault: layer 1 of the MindSpore side divides attention scores by head_dim, not by its root.'
	@echo 'Runs:     $(CURDIR)/$(DEMO)/runs'
	@echo 'Result:   $(CURDIR)/$(DEMO)/result/result.json'
	@echo 'Pairs:    $(CURDIR)/$(DEMO)/result/pairs.csv'
	@echo 'Report:   $(CURDIR)/$(DEMO)/result/report.html'

# Two halves at the same time, because a framework that records a dump keeps one core busy half of the time. The second
# half is everything that is not in the first, which has the last three so that both take equally long. Each prints when
# it ends.
test: .venv/test.stamp browser
	@$(MAKE) --no-print-directory -j2 -O test-dump-path test-others

DUMP_PATH := $(addprefix tests/,acceptance alignment api causes divergence comparison graph optimizers reports)

test-dump-path:
	$(BIN)/python -m pytest --no-skip $(DUMP_PATH)

test-others:
	$(BIN)/python -m pytest --no-skip $(addprefix --ignore=,$(DUMP_PATH))

# The tests of the report need a real browser. Where it is missing and nothing can be installed, they say so and fail.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null; } \
	  || echo 'make: Chromium is missing; as root: apt-get install chromium chromium-driver' >&2

lint: .venv/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: .venv/test.stamp
	cd docs/generate && ../../$(BIN)/python dump_config.py > ../dump-config.md
	cd docs/generate && ../../$(BIN)/python commands.py > ../commands.md

FUZZ_SECONDS ?= 60

fuzz: .venv/test.stamp
	cd tests && ../$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

benchmark-localise: .venv/test.stamp
	$(BIN)/python benchmarks/localise --write

benchmark-damage: .venv/test.stamp
	$(BIN)/python benchmarks/damage --write

benchmark-parallel: .venv/test.stamp
	$(BIN)/python benchmarks/parallel --write

clean:
	rm -rf .venv $(DEMO) site dist

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

# A stamp is older than pyproject.toml only if a dependency may have changed.
.venv/core.stamp: pyproject.toml .venv/pyvenv.cfg
	$(PIP) install -e .
	@touch $@

.venv/test.stamp: pyproject.toml .venv/pyvenv.cfg
	$(PIP) install -e '.[test]'
	@touch $@ .venv/core.stamp

.venv/lint.stamp: .venv/test.stamp
	$(PIP) install -e '.[test,lint]'
	@touch $@

.venv/docs.stamp: .venv/core.stamp
	$(PIP) install -e '.[docs]'
	@touch $@

$(DEMO)/unpacked.stamp: dumpdiff/api/data/demo.tar.xz .venv/core.stamp
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@$(BIN)/dumpdiff demo $(DEMO)/runs >/dev/null
	@touch $@

# An sdist and a wheel in dist/, then an empty environment for every Python that there is: install the wheel, run the demo,
# the commands of the README and the notebook.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14

dist: .venv/core.stamp
	$(PIP) install build
	rm -rf dist && $(BIN)/python -m build --outdir dist .
	$(BIN)/python benchmarks/installation.py dist/*.whl $(PYTHONS)
