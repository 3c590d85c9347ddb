#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The CUDA kernels, executed on the CPU by tests/cuda_emulator: plain, in forward and in reverse order
# of threads and blocks, and under the address, undefined-behaviour, thread and memory sanitizers.
# Needs CMake, ninja, g++, GoogleTest and the headers of CUDA
# and cuBLASLt (no GPU, no driver); clang 19 with its
# runtime for the last two. CUDA_EMULATOR_MODES="plain asan tsan msan" chooses. Arguments go to the
# test program. Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

echo '#include <gtest/gtest.h>' | g++ -x c++ -E - > /dev/null 2>&1 ||
  skip "needs g++ and GoogleTest. Debian: apt-get install g++ libgtest-dev"
toolkit=$("$PYTHON" "$TE_PATH/build_tools/cuda_toolkit.py" --fetch) || skip "needs CUDA's headers"
cublas=$("$PYTHON" "$TE_PATH/build_tools/cublas_headers.py" --fetch) || skip "needs cuBLASLt's headers"

export NVTE_CMAKE_BUILD_DIR=${NVTE_CMAKE_BUILD_DIR:-$TE_PATH/build/cmake}
"$PYTHON" "$TE_PATH/build_tools/cmake_build.py" --tests ${WERROR:+--werror} || {
  echo "FAIL $suite: build"
  exit 1
}
export PATH="$(dirname "$PYTHON"):$PATH"
ccache=$(command -v ccache || true)

# build MODE COMPILER
build() {
  local folder=$TE_PATH/build/emulator-$1
  { cmake -S "$TE_PATH/tests/cuda_emulator" -B "$folder" -G Ninja -DTE_EMULATOR_MODE="$1" \
    -DCMAKE_CXX_COMPILER="$2" ${ccache:+-DCMAKE_CXX_COMPILER_LAUNCHER=$ccache} \
    -DTE_CORE="$NVTE_CMAKE_BUILD_DIR/transformer_engine/common/libte_core.a" \
    -DTE_CUDA_INCLUDE="$toolkit/include" -DTE_CUBLAS_INCLUDE="$cublas" ${WERROR:+-DTE_WERROR=ON} &&
    cmake --build "$folder" -j "${MAX_JOBS:-$(nproc)}"; } > "$folder.log" 2>&1 || {
    tail -60 "$folder.log"
    return 1
  }
}

mkdir -p "$TE_PATH/build"
for mode in ${CUDA_EMULATOR_MODES:-plain asan tsan msan}; do
  compiler=g++
  if [ "$mode" = tsan ] || [ "$mode" = msan ]; then
    compiler=clang++-19
    if ! command -v "$compiler" > /dev/null; then
      echo "SKIP $suite: $mode needs $compiler. Debian: apt-get install clang-19 libclang-rt-19-dev llvm-19"
      [ "${QA_STRICT:-0}" != 1 ] || failures+=("$mode")
      continue
    fi
  fi
  run_case "$mode build" build "$mode" "$compiler"
  folder=$TE_PATH/build/emulator-$mode
  for order in forward reverse; do
    run_case "$mode $order emulator" env CUDA_EMULATOR_ORDER=$order "$folder/emulator_selftest" --gtest_brief=1
    run_case "$mode $order kernels" env CUDA_EMULATOR_ORDER=$order "$folder/te_cuda_tests" \
      --gtest_brief=1 --gtest_output="xml:$XML_LOG_DIR/cuda_${mode}_$order.xml" "$@"
  done
done
finish
