#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# One run on a machine with a GPU, with a CUDA build of torch and a CUDA toolkit, without a network:
# builds for the GPU's architecture, runs what tests CUDA's functions (that the emulator agrees with a
# GPU) and the kernels, compares quantizers and modules on the GPU with the CPU, measures kernels,
# products and host time, captures modules in graphs, and runs the Python tests on the GPU. A case that
# fails does not keep the others from running.
# Leaves its results in $OUT (default: build/cuda_run/results), no more than eight files: run.log (all
# that is printed), cuda.json and cuda.txt (measurements), parity.json, and the tests' in JUnit's format.
# What is built stays in build/cuda_run, so that a second run builds what has changed. Meant to end
# within SECONDS_LIMIT=540 on 16 cores: the Python tests get what is left of it, up to
# SECONDS_FOR_TESTS=240, and are interrupted then; TEST_PROCESSES=8 run them. Skips, with the reason,
# where something is missing; `make offline-kit` collects Python packages and GoogleTest for a machine
# that lacks them. Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

WORK=$TE_PATH/build/cuda_run
OUT=${OUT:-$WORK/results}
mkdir -p "$WORK" "$OUT"
if [ -z "${TE_CUDA_RUN_IS_LOGGED:-}" ]; then
  TE_CUDA_RUN_IS_LOGGED=1 bash "$0" "$@" 2>&1 | tee "$OUT/run.log"
  exit "${PIPESTATUS[0]}"
fi

# limited SECONDS COMMAND...: interrupted when its time is over, and so able to leave what it has.
limited() {
  env --default-signal=INT timeout --foreground --signal=INT --kill-after=15 "$@"
}

# timed_case NAME COMMAND...: run_case, and when it began and ended.
timed_case() {
  echo "== $1, at $SECONDS s"
  run_case "$@"
}

"$PYTHON" "$TE_PATH/build_tools/offline_kit.py" --link "$WORK/site"
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$WORK/site
need_module torch "Install a CUDA build of torch."
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  skip "needs a GPU that torch can use"
capability=$("$PYTHON" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
case $capability in 90 | 100) architecture=${capability}a ;; *) architecture=$capability ;; esac

export NVTE_USE_CUDA=1 NVTE_CUDA_ARCHS=$architecture
export NVTE_CMAKE_BUILD_DIR=$WORK/cmake
timed_case build "$PYTHON" "$TE_PATH/build_tools/cmake_build.py" --tests
if [ ${#failures[@]} != 0 ]; then  # perhaps of the C++ tests alone
  timed_case "build without C++ tests" "$PYTHON" "$TE_PATH/build_tools/cmake_build.py"
fi
export PYTHONPATH=$TE_PATH${PYTHONPATH:+:$PYTHONPATH}

# run_program NAME: its tests, and where some fail, those of each suite in a process of its own: an
# error of the device lasts until its process ends, and hides what the tests after it would show. A
# program finds cuBLASLt beside torch, which Python opens.
run_program() {
  local program=$NVTE_CMAKE_BUILD_DIR/tests/cpp/$1 suite_name libraries
  libraries=$("$PYTHON" -c 'import glob, sysconfig as s; print(":".join(glob.glob(s.get_path("purelib") + "/nvidia/*/lib")))')
  local -x LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  timeout 90 "$program" --gtest_brief=1 --gtest_output="xml:$OUT/$1.xml" && return
  echo "$1: each suite by itself"
  for suite_name in $("$program" --gtest_list_tests | grep '^[A-Za-z].*[.]$'); do
    timeout 20 "$program" --gtest_brief=1 --gtest_filter="$suite_name*" > "$WORK/suite.log" 2>&1 &&
      echo "ok   $suite_name" || { echo "FAIL $suite_name (exit $?)"; tail -n 20 "$WORK/suite.log"; }
  done
  return 1
}
for program in te_cuda_semantics te_cuda_tests; do
  if [ -x "$NVTE_CMAKE_BUILD_DIR/tests/cpp/$program" ]; then
    timed_case "$program" run_program "$program"
  else
    echo "SKIP $suite: $program needs GoogleTest. Debian: apt-get install libgtest-dev, or make offline-kit"
  fi
done

if ! has_module pydantic; then
  echo "$suite: what is left needs the Python module pydantic. Install it, or run \`make offline-kit\`."
  failures+=(pydantic)
  finish
fi
timed_case report "$PYTHON" -m transformer_engine.report
timed_case parity limited 120 "$PYTHON" "$TE_PATH/qa/L0_cuda/compare_devices.py" --json "$OUT/parity.json"
timed_case measure limited 150 "$PYTHON" "$TE_PATH/qa/L0_cuda/measure.py" --json "$OUT/cuda.json" \
  --table "$OUT/cuda.txt"

# run_tests SECONDS NAME ARGUMENTS...: by pytest, which writes what it has when its time is over.
run_tests() {
  local seconds=$1 name=$2
  shift 2
  TE_TEST_DEVICE=cuda limited "$seconds" "$PYTHON" -m pytest -q -p no:cacheprovider --junit-xml="$OUT/$name.xml" "$@"
}
if has_module pytest && has_module hypothesis; then
  processes=()
  ! has_module xdist || processes=(-n "${TEST_PROCESSES:-8}")
  timed_case graphs run_tests 90 graphs "${processes[@]}" "$TE_PATH/tests/pytorch/cuda"
  left=$((${SECONDS_LIMIT:-540} - SECONDS - 20))
  [ "$left" -lt "${SECONDS_FOR_TESTS:-240}" ] || left=${SECONDS_FOR_TESTS:-240}
  [ "$left" -gt 20 ] || left=20
  timed_case tests run_tests "$left" tests "${processes[@]}" -m "not slow" "$TE_PATH/tests/pytorch" \
    --ignore="$TE_PATH/tests/pytorch/distributed" --ignore="$TE_PATH/tests/pytorch/overhead" \
    --ignore="$TE_PATH/tests/pytorch/graph" --ignore="$TE_PATH/tests/pytorch/cuda" "$@"
else
  echo "SKIP $suite: the Python tests need pytest and hypothesis"
fi
echo "== end, at $SECONDS s"
finish
