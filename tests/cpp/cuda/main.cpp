// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests of the CUDA kernels. In the emulator it then prints which kernels ran, and fails
// when a __global__ function of the sources did not, unless tests were filtered.
#include <gtest/gtest.h>

#if defined(TE_CUDA_EMULATED)
#include <cuda_runtime.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <set>

#include "emulator.h"

namespace {

// Names of the __global__ functions in the kernel sources: what stands before the first "(" after
// __global__ and its __launch_bounds__.
std::set<std::string> kernels_in_sources() {
  const std::regex kernel(
      R"(__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\()");
  std::set<std::string> names;
  for (const auto& file : std::filesystem::recursive_directory_iterator(TE_KERNEL_FOLDER)) {
    const auto extension = file.path().extension();
    if (extension != ".cu" && extension != ".h") {
      continue;
    }
    std::ifstream stream(file.path());
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    for (std::sregex_iterator match(text.begin(), text.end(), kernel), end; match != end; ++match) {
      names.insert((*match)[1]);
    }
  }
  return names;
}

int report_coverage() {
  const auto executed = cuda_emulator::executed_kernels();
  std::cout << "kernels executed (" << TE_EMULATOR_MODE << "):";
  for (const std::string& name : executed) {
    std::cout << " " << name;
  }
  std::cout << "\n";
  int missing = 0;
  for (const std::string& name : kernels_in_sources()) {
    if (!std::binary_search(executed.begin(), executed.end(), name)) {
      std::cout << "NOT EXECUTED: " << name << "\n";
      ++missing;
    }
  }
  std::cout << executed.size() << " kernels executed, " << missing << " not\n";
  return missing;
}

}  // namespace
#endif

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int status = RUN_ALL_TESTS();
#if defined(TE_CUDA_EMULATED)
  if (GTEST_FLAG_GET(filter) == "*" && report_coverage() != 0) {
    status = 1;
  }
#endif
  return status;
}
