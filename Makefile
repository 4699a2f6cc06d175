# Every target does its own set-up: a virtual environment in .venv, pinned packages, the compiled kernel.
# NATIVE=OFF leaves the kernel out: NumPy computes, more slowly. AUTO leaves it out if it cannot be compiled, and ON
# makes that an error.

PYTHON ?= python3
NATIVE ?= AUTO
# On Linux, torch comes from this index if it answers within seconds and has a build for the CPU. PyPI's torch, which
# `TORCH_INDEX=` selects, needs CUDA: 2.7 GB to download.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

VENV    := .venv
BIN     := $(VENV)/bin
STAMPS  := $(VENV)/.stamps
# --no-compile: Python compiles a module when it is first imported; most modules of large packages never are.
PIP     := $(BIN)/python -m pip install --no-compile --constraint constraints.txt
# No build isolation: the pinned build tools stay in .venv, so that a rebuild compiles only what changed.
INSTALL := EVERYPAIR_NATIVE=$(filter-out AUTO,$(NATIVE)) $(PIP) --no-build-isolation
# Files that require a new installation when they change. Python files do not, except those of new packages.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt src/everypair/_version.py $(wildcard src/native/*) \
           $(wildcard src/everypair/*/__init__.py src/everypair/*/*/__init__.py)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test triton kernel-test compilers sanitize fuzz-native check bench results docs wheel pins fresh clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## +/  make \1\t/' | expand -t 20

demo: $(STAMPS)/demo  ## compare three losses on digits with 10 % positives; the page is demo/report.html
	$(BIN)/everypair experiment digits --imratio 0.1 --seeds 5 --out demo

# One worker runs all tests of a file, so that what they share is computed once. Files run in their usual order, which has the
# slow ones first. Three workers keep two cores busy, because some tests wait for other processes. The Triton kernels need a
# process of their own, in which Triton interprets them; its output comes last.
test: $(STAMPS)/dev  ## run all tests, with branch coverage
	@TRITON_INTERPRET=$${TRITON_INTERPRET-1} $(BIN)/python -m pytest -p no:cacheprovider tests/torch/triton \
	    > $(VENV)/triton.log 2>&1 & triton=$$!; trap "kill $$triton 2> /dev/null" INT TERM; \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/torch/triton \
	    --cov --cov-report=term --cov-fail-under=95; main=$$?; \
	wait $$triton; triton=$$?; cat $(VENV)/triton.log; \
	exit $$((main ? main : triton))

# The interpreter of Triton before 3.7 needs an older NumPy, whose warnings about it are ignored.
triton: $(STAMPS)/dev  ## interpret and compile the GPU kernels with another Triton: make triton TRITON=3.6.0 NUMPY=1.26.4
	$(BIN)/python -m pip install --no-deps --no-compile --upgrade --target build/triton-$(TRITON) \
	    triton==$(TRITON) $(addprefix numpy==,$(NUMPY))
	TRITON_INTERPRET=1 PYTHONPATH=build/triton-$(TRITON) $(BIN)/python -m pytest -p no:cacheprovider \
	    -W "ignore:Conversion of an array:DeprecationWarning" tests/torch/triton
	PYTHONPATH=build/triton-$(TRITON) $(BIN)/python -m tests.torch.triton.compile_kernels

# For aarch64 the programs are linked statically, so that the emulator needs no libraries of that architecture.
CROSS    := aarch64-linux-gnu-g++
EMULATOR := $(shell command -v qemu-aarch64 || command -v qemu-aarch64-static)
AARCH64  := -D CMAKE_SYSTEM_NAME=Linux -D CMAKE_SYSTEM_PROCESSOR=aarch64 -D CMAKE_CXX_COMPILER=$(CROSS) \
            -D CMAKE_EXE_LINKER_FLAGS=-static -D CMAKE_CROSSCOMPILING_EMULATOR=$(EMULATOR)
CMAKE := $(BIN)/cmake --log-level=WARNING -G Ninja -D CMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
CMAKE_KERNEL_TEST := $(CMAKE) -S . -D EVERYPAIR_KERNEL_TEST=ON
define kernel_test
$(CMAKE_KERNEL_TEST) -B $(1) $(2)
$(BIN)/cmake --build $(1)
$(3) $(BIN)/ctest --test-dir $(1) --output-on-failure --parallel 2
endef

kernel-test: $(STAMPS)/tools  ## test the kernel without Python, for aarch64 too if a cross-compiler and qemu are installed
	$(call kernel_test,build/kernel-test)
ifneq ($(filter aarch64 arm64,$(shell uname -m)),)
	@echo "This processor is aarch64: the tested kernel is the NEON kernel."
else ifneq ($(and $(EMULATOR),$(shell command -v $(CROSS) || true)),)
	$(call kernel_test,build/kernel-test-aarch64,$(AARCH64),EVERYPAIR_KERNEL_TEST_STRIDE=3)
else
	@echo "The NEON kernel was not tested. On Debian: apt-get install g++-aarch64-linux-gnu qemu-user"
endif

compilers:  ## test the kernel with every compiler found, or COMPILERS="g++-13 clang++-19", LEVELS=-O3, SETS="avx2 avx512"
	$(PYTHON) tests/native/compilers.py $(if $(LEVELS),--levels="$(LEVELS)") $(if $(SETS),--sets="$(SETS)") $(COMPILERS)

CLANG     = $(firstword $(foreach name,clang++ $(addprefix clang++-,20 19 18 17 16 15 14),$(shell command -v $(name))))
SANITIZE  = $(if $(CLANG),-D CMAKE_CXX_COMPILER=$(CLANG)) -D EVERYPAIR_SANITIZE
COMMA    := ,
# The memory of new arrays is filled with NaN. Python does not free all of its memory at its end.
sanitize fuzz-native: export ASAN_OPTIONS := detect_leaks=0:max_malloc_fill_size=1000000:malloc_fill_byte=255

# The runtimes of the extension have to be in the process before Python is. Clang's has one of two names, GCC's is libasan.
SANITIZED_TESTS := certified extremes fuzz inputs laws naive ordered_kernel ranks smooth threads
RUNTIME          = $(firstword $(filter /%,$(foreach name,$(1),$(shell $(or $(CLANG),g++) -print-file-name=$(name)))))
RUNTIMES         = $(call RUNTIME,libclang_rt.asan-$(shell uname -m).so libclang_rt.asan.so libasan.so) $(call RUNTIME,libstdc++.so)
sanitize: $(STAMPS)/dev  ## test the kernel, without and with Python, with sanitizers of addresses, undefined behaviour and threads
	$(call kernel_test,build/sanitize-address,$(SANITIZE)=address$(COMMA)undefined)
	$(call kernel_test,build/sanitize-thread,$(SANITIZE)=thread)
	$(CMAKE) -S . -B build/sanitize-python -D Python_EXECUTABLE=$(abspath $(BIN)/python) $(SANITIZE)=address,undefined
	$(BIN)/cmake --build build/sanitize-python
	EVERYPAIR_KERNEL=build/sanitize-python LD_PRELOAD="$(RUNTIMES)" $(BIN)/python -m pytest -p no:cacheprovider --capture=sys \
	    -p tests.native.given_kernel -k "not numpy" $(SANITIZED_TESTS:%=tests/test_%.py)

SECONDS := 600
JOBS    := 2
ISA      = $(if $(filter x86_64,$(shell uname -m)),avx2,baseline)

# Inputs that fail are written to build/fuzz as crash-*.
fuzz-native: $(STAMPS)/tools  ## fuzz the kernel, guided by coverage (needs Clang): SECONDS=3600 JOBS=2 ISA=avx512
	@test -n "$(CLANG)" || { echo "make fuzz-native needs Clang. On Debian: apt-get install clang"; exit 1; }
	$(CMAKE_KERNEL_TEST) -B build/fuzz $(SANITIZE)=address,undefined -D EVERYPAIR_FUZZ=ON
	$(BIN)/cmake --build build/fuzz --target fuzz_$(ISA)
	mkdir -p build/fuzz/corpus
	cd build/fuzz && rm -f fuzz-*.log && { ./fuzz_$(ISA) -jobs=$(JOBS) -workers=$(JOBS) -max_total_time=$(SECONDS) -len_control=0 -max_len=1300 \
	    -entropic_scale_per_exec_time=1 corpus ../../tests/native/corpus > /dev/null 2>&1; status=$$?; \
	    grep -hE "^FAIL|runtime error|ERROR:|batches computed" fuzz-*.log; exit $$status; }

check: $(STAMPS)/dev  ## lint, check the formatting and the types, print the lines of each folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m tests.test_budgets
	$(if $(wildcard src/native/*.cpp),$(BIN)/clang-format --dry-run --Werror $(wildcard src/native/*.[ch]pp tests/native/*.[ch]pp))

bench: $(STAMPS)/dev  ## time every instruction set against BCE and others, write rows, plots and tables, check the limits
	$(BIN)/python -m benchmarks run
	$(BIN)/python -m benchmarks report
	$(BIN)/python -m benchmarks check

results: $(STAMPS)/dev  ## draw the tables and figures in studies/results/ from the committed rows of the study
	$(BIN)/python -m studies.images report

docs: $(STAMPS)/docs  ## build the documentation into site/
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site

wheel: $(STAMPS)/dev  ## build the source distribution and the wheel into dist/
	EVERYPAIR_NATIVE=$(filter-out AUTO,$(NATIVE)) $(BIN)/python -m build --no-isolation --skip-dependency-check
	@ls -l dist

pins: $(STAMPS)/tools  ## resolve the pinned versions for Python 3.10 to 3.14 on Linux, macOS and Windows, from metadata alone
	$(PIP) --quiet uv
	TORCH_INDEX='$(TORCH_INDEX)' .ci/pins

SUITES := trixie bookworm
fresh:  ## run `make demo` and `make test` in new Debian systems, one for each of SUITES (as root; needs debootstrap)
	set -e; for suite in $(SUITES); do .ci/fresh $$suite; done

clean:  ## remove everything that was built, .venv included
	rm -rf $(VENV) build demo dist site .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/tools: constraints.txt | $(BIN)/python
	$(PIP) --quiet scikit-build-core nanobind cmake ninja
	@mkdir -p $(STAMPS) && touch $@

# Changing NATIVE reinstalls the package.
$(STAMPS)/native-$(NATIVE): $(STAMPS)/tools
	@rm -f $(STAMPS)/native-* && touch $@

# pip does not show the warning that the kernel could not be compiled. With NATIVE=ON it shows the reason, as an error.
define name_backend
@$(BIN)/python -c 'import everypair; print("Backend of everypair:", everypair.get_backend())'
@$(BIN)/python -c 'import everypair._native' 2> /dev/null || echo "The kernel is not compiled; NumPy is slower. NATIVE=ON shows why."
endef

# torch goes in first and alone, so that nothing else comes from its index. pip keeps it, because it satisfies the pin.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
$(STAMPS)/torch: constraints.txt | $(BIN)/python
	@if [ "$$(uname -s)" != Linux ]; then echo "To download: 0.3 GB for the demo, 0.5 GB for the tests."; \
	elif [ -n "$(TORCH_INDEX)" ] && $(BIN)/python -m pip index versions torch --index-url "$(TORCH_INDEX)" \
	    --timeout 5 --retries 0 2> /dev/null | grep -qF "$(TORCH)+cpu"; then \
	    echo "To download: 0.4 GB for the demo, 0.9 GB for the tests (torch for the CPU)."; \
	    $(PIP) --no-deps --index-url "$(TORCH_INDEX)" --timeout 15 --retries 2 torch; \
	else \
	    echo "To download: 2.9 GB for the demo, 3.2 GB for the tests. PyPI's torch brings CUDA, and TORCH_INDEX, which is"; \
	    echo "'$(TORCH_INDEX)', does not answer or has no torch $(TORCH)+cpu for this Python."; \
	fi
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/torch $(STAMPS)/native-$(NATIVE) $(SOURCES)
	$(INSTALL) --editable '.[experiments]'
	$(name_backend)
	@touch $@

$(STAMPS)/dev: $(STAMPS)/torch $(STAMPS)/native-$(NATIVE) $(SOURCES)
	$(INSTALL) --editable '.[dev]' tqdm
	$(name_backend)
	$(PIP) --no-deps libauc
	@$(PIP) --only-binary :all: scikit-survival \
	    || echo "scikit-survival could not be installed: its data and the comparison with it are skipped."
	@touch $@

$(STAMPS)/docs: $(STAMPS)/torch $(STAMPS)/native-$(NATIVE) $(SOURCES)
	$(INSTALL) --editable '.[docs]'
	@touch $@
