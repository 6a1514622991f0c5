# `make demo` and `make test` set themselves up; everything lives in .venv and is installed once.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
VERSIONS := .venv/versions.txt
DOCS_STAMP := .venv/.docs-installed

# without bytecode on disk, every worker and process of the tests compiles every file again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-locked demo lessons test test-all test-times wheel wheels test-combinations test-inductor test-accelerator test-distributed test-sanitized test-interop test-tokenizers test-statistics test-docs test-notebooks test-mutations test-planted test-tiers test-reliability test-wheel test-lowest test-newest docs generate check check-style check-types check-tests format clean bench bench-long bench-peers accelerator test-spawn test-without-posix test-wheels test-wine test-studio

setup: $(STAMP)

$(VERSIONS): requirements-dev.txt
	@mkdir -p .venv
	@sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' $< > $@

$(STAMP): pyproject.toml constraints.txt $(VERSIONS)
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: install Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(QUIET) --constraint $(VERSIONS) --editable '.[dev]'
	@touch $(STAMP)

# as `make setup`, with each file checked by its hash in requirements-dev.txt; torch is chosen by constraints.txt
setup-locked: $(VERSIONS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(QUIET) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements-dev.txt
	$(BIN)/python -m pip install $(QUIET) --editable '.[dev,docs]'
	@touch $(STAMP)

demo: setup
	$(BIN)/partwise demo

# the fast tests, and a case of each promise (minutes)
test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal --tier fast

# the rest of the tests: what needs whole trainings, processes and kills (a quarter of an hour); then comparisons as on macOS
test-all: setup
	$(BIN)/python -m pytest -n auto --dist worksteal --tier rest

# the tests of comparisons with processes that are no forks, as on macOS and Windows (minutes)
test-spawn: setup
	PARTWISE_START_METHOD=spawn $(BIN)/python -m pytest -n auto --dist worksteal tests/comparison tests/ablation tests/any_code tests/studies \
		--ignore tests/comparison/stats --ignore tests/comparison/design

# the studio in Chromium (minutes); STUDIO_CHROMIUM=/path/to/chromium, STUDIO_SCREENSHOTS=FOLDER for pictures of every screen
test-studio: setup
	$(call fresh_env,build/studio-env)
	build/studio-env/bin/python -m pip install $(QUIET) --constraint $(VERSIONS) --editable '.[studio]' httpx2 pytest pytest-timeout hypothesis playwright axe-playwright-python
	build/studio-env/bin/python -m pytest tests/studio -m "long or not long"

# the fast tests on an emulated Windows: without POSIX's functions and signals, links and renames of open files (minutes)
test-without-posix: setup
	$(BIN)/python -m pytest -n auto --dist worksteal --without-posix --tier fast

# measures every test, and so decides which of them `make test` runs
test-times: setup
	$(BIN)/python -m pytest -n auto --dist worksteal --write-times

# round trips of a million random strings through every byte-pair tokenizer
test-tokenizers: setup
	PARTWISE_STRINGS=1000000 $(BIN)/python -m pytest tests/tokenizers

# runs every command of README and docs, made small by a table (minutes)
test-docs: setup
	$(BIN)/python -m pytest tests/test_docs_commands.py -m "long or not long"

# every lesson of the course in full, and its values against their prediction intervals (minutes a lesson); LESSON=3 for one,
# PRECISION=float32 as on a machine without bfloat16 products
lessons: setup
	$(BIN)/python tests/lessons_in_full.py $(LESSON) $(if $(PRECISION),--precision $(PRECISION))

# executes the notebooks (minutes)
test-notebooks: setup
	$(BIN)/python -m pip install $(QUIET) --editable '.[dev,notebook]'
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=1200 -o timeout=1200 -n 0 examples/notebooks

# computes every published verdict anew with code of its own; then simulates whole comparisons to measure the instrument's
# error rates, and writes docs/statistics.md (half an hour)
test-statistics: setup
	$(BIN)/python tests/published_rows.py
	$(BIN)/python tests/statistics_page.py $(DRAWS)

DRAWS := 4000

# changes one line of the statistics at a time and expects a test to fail (about half an hour)
test-mutations: setup
	$(BIN)/python tests/mutation_testing.py

# plants bugs of the kinds that codebases of the field have shipped, one at a time, and expects a test to fail
test-planted: setup
	$(BIN)/python tests/mutation_testing.py --list planted_bugs
	$(BIN)/python tests/mutation_testing.py

# which tier catches each mutation and planted bug; stops and goes on (an hour or more)
test-tiers: setup
	$(BIN)/python tests/mutation_testing.py --list all --tier fast --table build/tiers.json

# puts faults into small runs (kills, damaged bits, NaN) and writes docs/reliability.md; continues where it stopped
#   make test-reliability MINUTES=60 ONLY="kill flip"
test-reliability: setup
	$(BIN)/python -m pytest tests/test_reliability.py tests/test_records.py -m long
	$(BIN)/python tests/reliability.py --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY)) $(AGAIN)

MINUTES := 15

# training over several processes: signals, kills, hangs, torchrun's restarts (minutes)
test-distributed: setup
	$(BIN)/python -m pytest -n 0 -m "long or not long" tests/train/distributed tests/ablation/test_processes_per_run.py

# the kernels' tests with address and undefined-behaviour sanitizers, with clang++ and without newer instructions; the same
# calls for aarch64 in an emulator (about half an hour)
#   make test-sanitized ONLY="sanitized aarch64"
test-sanitized: setup
	$(BIN)/python -m pytest tests/kernels -m long
	$(BIN)/python tests/kernel_builds.py $(ONLY)

# compiles every preset and every part with torch's own compiler, and traces its training
test-inductor: setup
	$(BIN)/python -m pytest tests/model/test_inductor.py tests/parts/test_contract.py tests/train/test_compile.py tests/train/test_cross_entropy.py tests/train/test_multi_seed.py -m long

# every piece of `make accelerator` on the CPU at small shapes (minutes)
test-accelerator: setup
	$(BIN)/python -m pytest -n 0 tests/benchmarks/test_accelerator.py -m "long or not long"

# more configurations of every family of transformers, in files and in float64 (minutes); then exported models in a fresh
# environment with transformers and without partwise
test-interop: setup
	$(BIN)/python -m pytest tests/formats tests/test_working_folder.py -n auto -m "long or not long"
	$(call fresh_env,build/transformers-env)
	build/transformers-env/bin/python -m pip install $(QUIET) torch transformers safetensors
	$(BIN)/python tests/transformers_smoke.py build/transformers-env/bin/python
	$(call fresh_env,build/harness-env)
	build/harness-env/bin/python -m pip install $(QUIET) --constraint $(VERSIONS) --editable '.[eval,hf]' pytest pytest-timeout pytest-xdist hypothesis
	build/harness-env/bin/python -m pytest tests/harness tests/ablation/test_task_metric.py

# a second wheel, from another folder, is the same file; the wheel alone in a fresh environment judges values and commands;
# with torch and without a compiler, it trains, compares and opens a report
#   make test-wheel PYTHON=python3.13
test-wheel: wheel
	rm -rf build/again && mkdir -p build/again && git archive HEAD | tar -x -C build/again
	$(BIN)/python -m build --outdir build/again/dist build/again > /dev/null
	cmp dist/*.whl build/again/dist/*.whl
	$(call fresh_env,build/wheel-env)
	build/wheel-env/bin/python -m pip install $(QUIET) dist/*.whl
	env -i HOME="$$HOME" PATH="$$PATH" build/wheel-env/bin/python tests/wheel_smoke.py instrument
	build/wheel-env/bin/python -m pip install $(QUIET) "$$(ls dist/*.whl)[torch]"
	env -i HOME="$$HOME" PATH=/nonexistent CXX=/nonexistent build/wheel-env/bin/python tests/wheel_smoke.py

# the wheel with the oldest versions that pyproject.toml allows, except torch's; then every family of models with the oldest
# transformers, whose own bounds may be higher; old packages warn
test-lowest: wheel
	$(call fresh_env,build/lowest-env)
	$(BIN)/python tests/lowest_versions.py > build/lowest.txt
	build/lowest-env/bin/python -m pip install $(QUIET) --requirement build/lowest.txt "$$(ls dist/*.whl)[torch]"
	build/lowest-env/bin/python tests/wheel_smoke.py
	$(BIN)/python tests/lowest_versions.py hf > build/lowest-hf.txt
	build/lowest-env/bin/python -m pip install $(QUIET) --requirement build/lowest-hf.txt pytest pytest-timeout hypothesis
	build/lowest-env/bin/python -m pytest -W ignore tests/formats -m "long or not long"

# all tests with the newest versions that pyproject.toml allows, except torch's
test-newest:
	$(call fresh_env,build/newest-env)
	build/newest-env/bin/python -m pip install $(QUIET) --editable '.[dev]'
	build/newest-env/bin/python -m pytest -n auto --dist worksteal

wheel: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null

# kernels compiled ahead for four platforms, and a wheel without (a quarter of an hour); PLATFORM=linux-x86_64 for one
wheels: setup
	test -x build/wheel-builder/bin/python || $(PYTHON) -m venv build/wheel-builder
	build/wheel-builder/bin/python -m pip install $(QUIET) build hatchling ziglang==0.17.1
	build/wheel-builder/bin/python wheels.py $(PLATFORM)

# all wheels again from an empty folder, byte for byte; their symbols and signatures; their kernels for Windows in wine and for
# aarch64 in qemu, on the threads of an OpenMP runtime (half an hour; apt-get install wine64 qemu-user g++-aarch64-linux-gnu)
test-wheels: wheels
	build/wheel-builder/bin/python -m pip install $(QUIET) lief==1.0.0
	rm -rf build/wheels-again
	ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/build/wheels-again/zig build/wheel-builder/bin/python wheels.py --build build/wheels-again --dist build/wheels-again/dist
	for wheel in build/wheels-again/dist/*.whl; do cmp $$wheel dist/$${wheel##*/} || exit 1; done
	build/wheel-builder/bin/python tests/wheels/symbols.py build/wheels
	PYTHONPATH=tests $(BIN)/python tests/wheels/calls.py build/wheel-builder/bin/python

# the fast tests by Python for Windows, in wine 10 or newer; WORDS="partwise.exe demo" runs a command there
test-wine:
	$(MAKE) wheels PLATFORM=windows-x86_64
	build/wheel-builder/bin/python -m pip install $(QUIET) uv
	build/wheel-builder/bin/python tests/wine.py $(WORDS)

QUIET := --quiet --disable-pip-version-check --constraint constraints.txt
fresh_env = rm -rf $(1) && $(PYTHON) -m venv $(1)

test-combinations: setup
	$(BIN)/python tests/combinations.py $(N)

N := 10000

# builds the pages of docs/ and the API reference into build/site; warnings are errors; needs no network after its set-up
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site

$(DOCS_STAMP): $(STAMP) $(VERSIONS)
	$(BIN)/python -m pip install $(QUIET) --constraint $(VERSIONS) --editable '.[dev,docs]'
	@touch $(DOCS_STAMP)

# writes every file that follows from the code and from stored measurements: completions, schemas, pages and figures (seconds)
generate: setup
	$(BIN)/python tests/generated.py

# format, lint, types and what a change usually breaks, side by side (a minute; a few the first time, when mypy has no cache)
check: setup
	@$(MAKE) --no-print-directory --jobs $(if $(filter output-sync,$(.FEATURES)),--output-sync) check-style check-types check-tests

check-style:
	$(BIN)/ruff format --check src tests benchmarks examples hatch_build.py
	$(BIN)/ruff check src tests benchmarks examples hatch_build.py

# also as on Windows, where a function of POSIX is an error
check-types:
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/python -m pytest -n 0 tests/test_scripting.py -m long

# without what takes seconds and only some changes break: `make test` has it
check-tests:
	$(BIN)/python -m pytest -n auto --dist worksteal --tier fast tests/test_*.py tests/cli tests/config tests/presets \
		tests/parts/test_equations.py --ignore tests/cli/test_signals.py --ignore tests/presets/test_transformers.py \
		--deselect tests/presets/test_tutorials.py::test_llama_equals_transformers

format: setup
	$(BIN)/ruff format src tests benchmarks examples hatch_build.py
	$(BIN)/ruff check --fix src tests benchmarks examples hatch_build.py

# measures every goal against every installable peer, in one table: over an hour on two idle cores
#   make bench NANOGPT=path of a nanoGPT checkout
# A failed benchmark has no rows in the table, and says so.
bench: bench-peers
	@mkdir -p $(BENCH) docs
	$(call measure,arithmetic_evaluation)
	$(call measure,preparation)
	$(call measure,sampling)
	$(call measure,growth,$(WITH_NANOGPT) --figure docs/growth.svg)
	$(foreach shape,$(SHAPES),$(call measure_as,training_step,training_step-$(shape),--shape $(shape) $(WITH_PEERS))$(NEWLINE))
	$(call measure_as,training_step,training_step-variants,--variants)
	$(call measure,comparison)
	$(call measure,multi_seed)
	$(call measure,overhead)
	$(call measure,starting)
	$(call measure,busy_machine,$(WITH_NANOGPT))
	$(BIN)/python benchmarks/table.py $(BENCH)

# the full comparison and full trainings to a loss: hours; run the same command again to resume
bench-long: bench-peers
	@mkdir -p $(BENCH)
	$(call measure_as,comparison,comparison-whole,--steps 5000)
	$(call measure,time_to_loss,$(WITH_NANOGPT))
	$(BIN)/python benchmarks/table.py $(BENCH)

# every figure of one GPU, in pieces of at most eight minutes, without an environment of ours; the same command goes on
#   make accelerator OUT=results NANOGPT=path of a nanoGPT checkout MINUTES=25
accelerator:
	PYTHONPATH=src$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) benchmarks/accelerator.py --out $(OUT) $(WITH_NANOGPT) \
		$(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES))

OUT := build/accelerator

# a peer that cannot be installed is only missing from the table
bench-peers: setup
	@for peer in x-transformers xllamacpp gguf; do \
		$(INSTALL) $$peer || echo "$$peer cannot be installed here: its figures will be missing" >&2; \
	done
	@test -x build/litgpt-env/bin/litgpt || { $(PYTHON) -m venv build/litgpt-env && \
		build/litgpt-env/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt litgpt; } || \
		echo "litgpt cannot be installed here: its figures will be missing" >&2

BENCH := build/bench
SHAPES := seed cpu-recipe width-384 gpt2-124m
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WITH_NANOGPT = $(if $(NANOGPT),--nanogpt $(NANOGPT))
WITH_PEERS = $(WITH_NANOGPT) --litgpt build/litgpt-env/bin/python
# results of an earlier run must not pass for this one's
measure_as = -$(if $(wildcard benchmarks/$(1).py),rm -f $(BENCH)/$(2).json && \
	$(BIN)/python benchmarks/$(1).py $(3) --json $(BENCH)/$(2).json)
measure = $(call measure_as,$(1),$(1),$(2))
define NEWLINE


endef

clean:
	rm -rf .venv
