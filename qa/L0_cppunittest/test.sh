#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The C++ tests of the core, once per instruction set of the CPU kernels. Needs a C++20 compiler,
# CMake, ninja and GoogleTest; builds what is out of date. Arguments go to the test program.
# Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

compiler=${CXX:-g++}
command -v "$compiler" > /dev/null || skip "needs the compiler $compiler. Debian: apt-get install g++"
echo '#include <gtest/gtest.h>' | "$compiler" -x c++ -E - > /dev/null 2>&1 ||
  skip "needs GoogleTest. Debian: apt-get install libgtest-dev"

export NVTE_CMAKE_BUILD_DIR=${NVTE_CMAKE_BUILD_DIR:-$TE_PATH/build/cmake}
"$PYTHON" "$TE_PATH/build_tools/cmake_build.py" --tests ${WERROR:+--werror} || {
  echo "FAIL $suite: build"
  exit 1
}

# A set that this processor lacks is lowered to the best it has.
for isa in avx512bf16 avx512 avx2 base; do
  run_case "$isa" env NVTE_CPU_ISA=$isa "$NVTE_CMAKE_BUILD_DIR/tests/cpp/te_tests" \
    --gtest_brief=1 --gtest_output="xml:$XML_LOG_DIR/cppunittest_$isa.xml" "$@"
done
finish
