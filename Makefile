# The project's commands. Each sets up what it needs on a fresh machine (Python 3.11, g++, make): a virtual environment in
# .venv with the versions of constraints.txt, then the package itself, rebuilt when its native sources change.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export NO_MKDOCS_2_WARNING = 1

# The first Python of at least 3.11 (constraints.txt is pinned for it). The environment remembers which one it was.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet -c constraints.txt
# With a compiler at hand a kernel that doesn't build is an error here; without one the package does without it.
CXX_FOUND := $(shell command -v $${CXX:-c++} || command -v g++ || command -v clang++)
export STEADYSUM_REQUIRE_NATIVE ?= $(if $(CXX_FOUND),1,0)

NATIVE := $(shell find native -not -path 'native/test/*' \( -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null)
CPP := $(shell find native tests -name '*.cpp' -o -name '*.hpp' 2>/dev/null)
PYTHON_TREES := src tests benchmarks examples tools
SANITIZERS := address undefined thread

.PHONY: help run test bench bench-gpu lint vendor-schema docs format soak native-test function-errors examples clean
help:  ## Show the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | column -t -s $$'\t'

# --- The environment ----------------------------------------------------------------------------------------------------
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV) || { echo "No Python >= 3.11 with venv found; set PYTHON=..." >&2; exit 1; }
	touch $@

$(VENV)/.build-tools: constraints.txt | $(VENV)/.created
	$(PIP) scikit-build-core nanobind cmake ninja
	touch $@

# Editable: Python changes need no step at all; native changes rebuild into build/editable.
$(VENV)/.package: $(VENV)/.build-tools pyproject.toml CMakeLists.txt $(NATIVE)
	$(PIP) --no-build-isolation --config-settings=build-dir=build/editable --editable .
	touch $@

# An extra of pyproject.toml, without building the package again.
$(VENV)/.extra-%: pyproject.toml constraints.txt | $(VENV)/.package
	$(BIN)/python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$*']))" > $@.txt
	$(PIP) --requirement $@.txt
	touch $@

# --- The product --------------------------------------------------------------------------------------------------------
run: $(VENV)/.package  ## The main job: check the operator on the default shapes
	$(BIN)/steadysum check

test: $(VENV)/.package $(VENV)/.extra-dev $(VENV)/.extra-real $(VENV)/.extra-triton traps  ## All tests, but the soak
	STEADYSUM_TRAPS_BUILD=build/traps $(BIN)/pytest -n 2 -m "not soak" tests
	$(BIN)/pytest -q --doctest-modules src

soak: $(VENV)/.package $(VENV)/.extra-dev $(VENV)/.extra-real $(VENV)/.extra-triton traps native-test function-errors  ## The long tests: many more drawn examples, load, repetition
	STEADYSUM_TRAPS_BUILD=build/traps $(BIN)/pytest -n 2 --hypothesis-profile=soak tests

bench: $(VENV)/.package $(VENV)/.extra-bench $(VENV)/.extra-real  ## Side by side with peers; ARGS=--quick for a short look
	$(BIN)/python -m benchmarks $(ARGS)

bench-gpu: $(VENV)/.package $(VENV)/.extra-bench  ## The triton kernels beside peers, on a GPU; ARGS=--quick for a short look
	$(BIN)/python -m benchmarks.gpu $(ARGS)

examples: $(VENV)/.package $(VENV)/.extra-real  ## Run the examples
	for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example; done

# --- The code -----------------------------------------------------------------------------------------------------------
lint: $(VENV)/.package $(VENV)/.extra-dev  ## ruff, mypy, import-linter, clang-format
	$(BIN)/ruff check $(wildcard $(PYTHON_TREES))
	$(BIN)/ruff format --check $(wildcard $(PYTHON_TREES))
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))

vendor-schema: $(VENV)/.package  ## Compare the vendor's operators with those of its published package; ARGS=--or-skip
	$(BIN)/python tools/check_vendor_schema.py $(ARGS)

format: $(VENV)/.package $(VENV)/.extra-dev  ## Format all sources
	$(BIN)/ruff check --fix $(wildcard $(PYTHON_TREES))
	$(BIN)/ruff format $(wildcard $(PYTHON_TREES))
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

docs: $(VENV)/.package $(VENV)/.extra-docs  ## Build the user guide into build/site, strictly
	$(BIN)/mkdocs build --strict --site-dir build/site

# A second build of the extension, with the numerical traps that tests arm. Tests load it by path; nothing installs it.
.PHONY: traps
traps: $(VENV)/.package $(VENV)/.extra-dev
	if [ -z "$(CXX_FOUND)" ]; then echo "no C++ compiler: the build with traps is left out"; exit 0; fi
	mkdir -p build
	$(BIN)/cmake -S . -B build/traps -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DSTEADYSUM_TRAPS=ON -DSTEADYSUM_REQUIRE_NATIVE=ON > build/traps.log
	$(BIN)/cmake --build build/traps

native-test: $(addprefix native-test-,$(SANITIZERS))  ## The kernel's test binary under each sanitizer
native-test-%: $(VENV)/.extra-dev
	mkdir -p build
	$(BIN)/cmake -S . -B build/native-$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DSTEADYSUM_TEST_BINARY=ON -DSTEADYSUM_SANITIZE=$* -DSTEADYSUM_WERROR=ON -DCMAKE_BUILD_TYPE=Release > build/native-$*.log
	$(BIN)/cmake --build build/native-$*
	echo "== native_test under the $* sanitizer"
	build/native-$*/native_test

function-errors: $(VENV)/.extra-dev  ## Errors of exp, tanh and log in ulp, over every float (part of soak)
	mkdir -p build
	$(BIN)/cmake -S . -B build/native-release -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DSTEADYSUM_TEST_BINARY=ON -DSTEADYSUM_WERROR=ON -DCMAKE_BUILD_TYPE=Release > build/native-release.log
	$(BIN)/cmake --build build/native-release --target function_errors
	build/native-release/function_errors

clean:  ## Remove what was built, but the environment
	rm -rf build
	rm -f $(VENV)/.package
