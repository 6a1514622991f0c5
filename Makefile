# `make demo` and `make test` set themselves up; everything lives in .venv and is installed once.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-combinations test-inductor test-tokenizers check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: install Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/partwise compare mingpt ffn=swiglu --data arithmetic --seeds 3 --name demo \
		--common train.steps=$(DEMO_STEPS) --common train.eval_every=$(DEMO_EVERY) \
		--common data.validation=1000 --common data.test=1000

DEMO_STEPS := 201
DEMO_EVERY := 67

test: setup
	$(BIN)/python -m pytest -n auto

# a million random strings through every byte-pair tokenizer and back
test-tokenizers: setup
	PARTWISE_STRINGS=1000000 $(BIN)/python -m pytest tests/test_tokenizers.py tests/test_bpe.py

# every preset through torch's own compiler
test-inductor: setup
	$(BIN)/python -m pytest tests/test_inductor.py -m long

test-combinations: setup
	$(BIN)/python tests/combinations.py $(N)

N := 10000

check: setup
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -m "not slow and not long"

format: setup
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

clean:
	rm -rf .venv
