#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The CUDA kernels, executed on the CPU by tests/cuda_emulator: plain, in forward and in reverse order
# of threads and blocks, and under the address, undefined-behaviour, thread and memory sanitizers.
# Then the Python tests of quantizers, modules, attention, rotary embeddings, cross entropy and optimizers with the
# emulated library in place of the core, so that the binding and the steps run on the CUDA path. Needs
# CMake, ninja, g++, GoogleTest and the headers of CUDA, cuBLASLt and cuDNN (no GPU, no driver); clang 19 with
# its runtime for the last two.
# CUDA_EMULATOR_MODES="plain asan tsan msan" chooses. Arguments go to the test program. Settings: see
# qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

# say STEP: the next one may be silent for many minutes.
say() {
  echo "== $suite: $1, at $SECONDS s"
}

echo '#include <gtest/gtest.h>' | g++ -x c++ -E - > /dev/null 2>&1 ||
  skip "needs g++ and GoogleTest. Debian: apt-get install g++ libgtest-dev"
say "headers of CUDA, cuBLASLt and cuDNN"
toolkit=$("$PYTHON" "$TE_PATH/build_tools/cuda_toolkit.py" --fetch) || skip "needs CUDA's headers"
cublas=$("$PYTHON" "$TE_PATH/build_tools/cublas_headers.py" --fetch) || skip "needs cuBLASLt's headers"
cudnn=$("$PYTHON" "$TE_PATH/build_tools/cudnn_headers.py" --fetch) || skip "needs cudnn-frontend"

export NVTE_CMAKE_BUILD_DIR=${NVTE_CMAKE_BUILD_DIR:-$TE_PATH/build/cmake}
say "build of the core"
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
    -DTE_CUDA_INCLUDE="$toolkit/include" -DTE_CUBLAS_INCLUDE="$cublas" -DTE_CUDNN_INCLUDE="$cudnn" \
    ${WERROR:+-DTE_WERROR=ON} &&
    cmake --build "$folder" -j "${MAX_JOBS:-$(nproc)}"; } > "$folder.log" 2>&1 || {
    tail -60 "$folder.log"
    return 1
  }
}

# run_both_orders MODE NAME PROGRAM ARGUMENTS: at the same time, each with its output in one piece.
run_both_orders() {
  local mode=$1 name=$2 program=$TE_PATH/build/emulator-$1/$3 order job
  shift 3
  declare -A jobs
  for order in forward reverse; do
    CUDA_EMULATOR_ORDER=$order "$program" --gtest_brief=1 \
      --gtest_output="xml:$XML_LOG_DIR/cuda_${name}_${mode}_$order.xml" "$@" \
      > "$XML_LOG_DIR/cuda_${name}_${mode}_$order.log" 2>&1 &
    jobs[$order]=$!
  done
  for order in forward reverse; do
    wait "${jobs[$order]}"
    job=$?
    tail -n 40 "$XML_LOG_DIR/cuda_${name}_${mode}_$order.log"
    [ $job = 0 ] || { echo "FAIL $suite: $mode $order $name (exit $job)"; failures+=("$mode $order $name"); }
  done
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
  say "$mode: build (minutes where much is out of date; see build/emulator-$mode.log)"
  run_case "$mode build" build "$mode" "$compiler"
  say "$mode: tests of the emulator, in two orders"
  run_both_orders "$mode" emulator emulator_selftest
  say "$mode: tests of the kernels, in two orders"
  run_both_orders "$mode" kernels te_cuda_tests "$@"
done

library=$TE_PATH/build/emulator-plain/libtransformer_engine.so
if [ -f "$library" ] && has_module torch && has_module pytest; then
  say "Python tests on the emulated device"
  run_case "python" env LD_PRELOAD="$library" PYTHONPATH="$TE_PATH" OMP_NUM_THREADS=1 \
    "$PYTHON" -m pytest -q -n "${MAX_JOBS:-2}" -m "not slow" -p no:cacheprovider \
    "$TE_PATH/tests/pytorch/tensor" "$TE_PATH/tests/pytorch/module" "$TE_PATH/tests/pytorch/csrc" \
    "$TE_PATH/tests/pytorch/attention/test_rope.py" "$TE_PATH/tests/pytorch/attention/test_rope_native.py" \
    "$TE_PATH/tests/pytorch/optimizers" "$TE_PATH/tests/pytorch/test_cross_entropy.py" \
    "$TE_PATH/tests/pytorch/attention/backends" \
    --ignore "$TE_PATH/tests/pytorch/csrc/test_gemm.py" # of the CPU's own implementations
fi
finish
