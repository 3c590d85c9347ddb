# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
#   make demo            train a small GPT in FP32, BF16 and FP8 (ARGS="..." for its options)
#   make demo-recipes    the same under every recipe; compares the losses
#   make dev             editable install in .venv
#   make test            C++ and Python tests       make lint    formats, linters, types, headers
#   make test-cuda-emulated  the CUDA kernels, executed on the CPU under sanitizers
#   make cuda-compile    the CUDA kernels, compiled without a GPU: warnings, registers, instructions
#   make test-distributed    tests of two and of four processes under torchrun
#   make bench           speed against torch        make fmt     format all sources
#   make bench-overhead  host time of a call against torch.nn; fails where a gate is missed
#   make stats           numbers of the tree        make docs    API pages in docs/api
#   make clean           remove what was built      make distclean    and the virtual environment
#
# PYTHON: the interpreter to start from; VENV: where the environment goes; WERROR=1: warnings of the
# C++ compiler are errors; MAX_JOBS: parallel compile jobs.
PYTHON ?= python3
VENV ?= .venv
WERROR ?=
ARGS ?=

python := $(abspath $(VENV))/bin/python
stamps := $(VENV)/stamps
qa := PYTHON=$(python) WERROR=$(WERROR) bash qa
build_native := $(python) build_tools/cmake_build.py --tests $(if $(WERROR),--werror)
cmake_options := -DNVTE_BUILD_TESTS=ON $(if $(WERROR),-DNVTE_WERROR=ON)

.PHONY: demo demo-recipes dev venv build test cpptest test-python test-cuda-emulated cuda-compile offline-kit test-distributed lint fmt bench bench-overhead stats docs clean distclean

venv: $(stamps)/venv
$(stamps)/venv: requirements.txt requirements-dev.txt requirements-megatron.txt build_tools/setup_venv.sh
	bash build_tools/setup_venv.sh $(PYTHON) $(VENV)
	@mkdir -p $(stamps) && touch $@

# The install itself runs again only when its inputs change; `build` brings the native files up to
# date each time, which takes a second when nothing changed.
$(stamps)/dev: $(stamps)/venv setup.py pyproject.toml build_tools/VERSION.txt build_tools/backend.py
	$(build_native) # here with its progress; pip then finds it done
	NVTE_CMAKE_EXTRA_ARGS="$(cmake_options)" $(python) -m pip install \
	  --disable-pip-version-check --quiet --no-build-isolation --no-deps -e .
	@touch $@

dev: build
build: $(stamps)/dev
	$(build_native)

demo: build
	$(python) examples/train_gpt.py $(ARGS)

demo-recipes: build
	$(python) examples/train_gpt.py --compare $(ARGS)

cpptest: build
	$(qa)/L0_cppunittest/test.sh

test: cpptest test-cuda-emulated test-python
test-python: build
	$(qa)/L0_pytorch_unittest/test.sh $(ARGS)

test-cuda-emulated: build
	$(qa)/L0_cuda_emulated/test.sh $(ARGS)

cuda-compile: $(stamps)/venv
	$(qa)/L0_cuda_compile/test.sh $(ARGS)

offline-kit: $(stamps)/venv
	$(python) build_tools/offline_kit.py $(ARGS)

test-distributed: build
	$(qa)/L1_pytorch_distributed/test.sh $(ARGS)

lint: $(stamps)/venv
	$(qa)/L0_license/test.sh
	$(qa)/L0_pytorch_lint/test.sh

fmt: $(stamps)/venv
	$(python) -m ruff check --fix --select I .
	$(python) -m ruff format .
	$(python) build_tools/format_cpp.py

bench: build
	$(python) -m benchmarks $(ARGS)

bench-overhead: build
	$(python) -m benchmarks.host_overhead $(ARGS)

stats: $(stamps)/venv
	$(python) build_tools/tree_stats.py

docs: build
	$(python) build_tools/make_docs.py

clean:
	rm -rf build dist docs/api *.egg-info transformer_engine/build_info.json $(stamps)/dev
	rm -f transformer_engine/*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
