// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the stand-in for cuDNN knows of a graph, and how it runs it: each operation by itself, in
// FP64, rounded only where a result is stored, and to FP8 (of FP32, saturating) where a result has
// such a type, stored or not. What a kernel may leave undefined is NaN: scores and gradients
// outside the lengths that a matrix product is given, and rows of a ragged tensor beyond its
// extent, which are neither read nor written. The largest magnitude is that of what is defined, 0
// of nothing.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace transformer_engine::testing {

using Index4 = std::array<int64_t, 4>;

struct GraphTensor {
  int64_t id = 0;
  Index4 dims{}, strides{};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false;
  bool is_by_value = false;             // its pointer is to host memory
  int64_t alignment = 1;                // bytes
  std::shared_ptr<GraphTensor> ragged;  // [batch + 1] where sequences begin, in elements
};
using GraphTensorPointer = std::shared_ptr<GraphTensor>;

enum class GraphOperationKind { kPointwise, kMatmul, kReduction, kRng, kReshape };

struct GraphOperation {
  GraphOperationKind kind = GraphOperationKind::kPointwise;
  std::vector<GraphTensorPointer> inputs;
  GraphTensorPointer output;
  int mode = 0;                        // pointwise, reduction: cuDNN's number
  int64_t axis = -1;                   // index generation
  GraphTensorPointer m, n, k;          // matrix product: lengths by batch
  double padding = __builtin_nan("");  // matrix product: outside the lengths
  double probability = 1.0;            // random: of a 1
};

class Graph {
 public:
  void add(GraphOperation operation) { operations_.push_back(std::move(operation)); }
  // Null, or what NVIDIA's documentation does not list as supported.
  const char* refusal() const;
  // False where a pointer is missing or misaligned.
  bool run(const std::map<int64_t, void*>& pointers) const;

 private:
  std::vector<GraphOperation> operations_;
};

}  // namespace transformer_engine::testing
