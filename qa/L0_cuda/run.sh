#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# One run on a machine with a GPU, with a CUDA build of torch and a CUDA toolkit, without a network:
# builds for the GPU's architecture, runs what tests CUDA's functions (that the emulator agrees with a
# GPU) and the kernels, compares quantizers and modules on the GPU with the CPU, measures kernels,
# products and host time, and runs the Python tests on the GPU. Writes $OUT/cuda.json and $OUT/cuda.txt
# (OUT: default build/cuda_run). Meant to end within 9 minutes on 16 cores; SECONDS_FOR_TESTS=240 bounds
# the Python tests, TEST_PROCESSES=8 run them. Skips, with the reason, where something is missing; `make
# offline-kit` collects Python packages and GoogleTest for a machine that lacks them. Settings: see
# qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

OUT=${OUT:-$TE_PATH/build/cuda_run}
mkdir -p "$OUT"
"$PYTHON" "$TE_PATH/build_tools/offline_kit.py" --link "$OUT/site"
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$OUT/site
need_module torch "Install a CUDA build of torch."
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  skip "needs a GPU that torch can use"
capability=$("$PYTHON" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
case $capability in 90 | 100) architecture=${capability}a ;; *) architecture=$capability ;; esac

need_module pydantic "Install it, or run \`make offline-kit\` where there is a network."
export NVTE_USE_CUDA=1 NVTE_CUDA_ARCHS=$architecture
export NVTE_CMAKE_BUILD_DIR=$OUT/cmake
run_case build "$PYTHON" "$TE_PATH/build_tools/cmake_build.py" --tests
export PYTHONPATH=$TE_PATH${PYTHONPATH:+:$PYTHONPATH}
run_case report "$PYTHON" -m transformer_engine.report
for program in te_cuda_semantics te_cuda_tests; do
  if [ -x "$OUT/cmake/tests/cpp/$program" ]; then
    run_case "$program" timeout 120 "$OUT/cmake/tests/cpp/$program" --gtest_brief=1 \
      --gtest_output="xml:$OUT/$program.xml"
  else
    echo "SKIP $suite: $program needs GoogleTest. Debian: apt-get install libgtest-dev, or make offline-kit"
  fi
done
run_case parity "$PYTHON" "$TE_PATH/qa/L0_cuda/compare_devices.py" --json "$OUT/parity.json"
run_case measure "$PYTHON" "$TE_PATH/qa/L0_cuda/measure.py" --json "$OUT/cuda.json" --table "$OUT/cuda.txt"
if has_module pytest && has_module hypothesis; then
  processes=()
  ! has_module xdist || processes=(-n "${TEST_PROCESSES:-8}")
  run_case tests env TE_TEST_DEVICE=cuda timeout "${SECONDS_FOR_TESTS:-240}" "$PYTHON" -m pytest -q \
    "${processes[@]}" -m "not slow" "$TE_PATH/tests/pytorch" --ignore="$TE_PATH/tests/pytorch/distributed" \
    --ignore="$TE_PATH/tests/pytorch/overhead" --ignore="$TE_PATH/tests/pytorch/graph" \
    --junit-xml="$OUT/tests.xml" "$@"
else
  echo "SKIP $suite: the Python tests need pytest and hypothesis"
fi
finish
