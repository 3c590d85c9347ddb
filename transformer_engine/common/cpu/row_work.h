// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Splitting row-wise ops over threads, and sums over rows that do not depend on the thread count.
#pragma once

#include <transformer_engine/types.h>

#include <algorithm>
#include <bit>

#include "core/parallel.h"
#include "core/scratch.h"
#include "cpu/row_kernels.h"

namespace transformer_engine::cpu {

// Elements below which a thread costs more than it brings.
constexpr int64_t kGrainNumel = 16384;

// Rows that make a thread worth starting.
inline int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(kGrainNumel / std::max<int64_t>(cols, 1), 1);
}

// The same in whole multiples of `alignment` rows.
inline int64_t row_grain(int64_t cols, int64_t alignment) {
  return (row_grain(cols) + alignment - 1) / alignment * alignment;
}

inline void* row_address(const TensorView& view, int64_t row) {
  return view.data == nullptr
             ? nullptr
             : static_cast<char*>(view.data) + row * view.cols * element_size_bytes(view.dtype);
}

// Sums over the rows of a [rows, cols] matrix: rows are cut into at most kMaxChunks chunks by their
// number alone, each chunk sums into its own row of FP32 parts, and the parts are added in order.
// So the result has the same bits for any number of threads.
class RowSumParts {
 public:
  // `is_wanted` false: chunks to work on, but no sums.
  RowSumParts(int64_t rows, int64_t cols, bool is_wanted)
      : rows_(rows),
        cols_(cols),
        chunk_rows_(std::max(kMinChunkRows, power_of_two((rows + kMaxChunks - 1) / kMaxChunks))),
        chunks_((rows + chunk_rows_ - 1) / chunk_rows_),
        parts_(is_wanted ? chunks_ * cols : 0) {}

  // Calls body(begin, end, thread, sums) for each chunk; sums is zeros [cols], or null. A thread
  // takes its chunks in order, and whole multiples of `row_alignment` rows, a power of two.
  template <typename Body>
  void for_chunks(int num_threads, int64_t row_alignment, const Body& body) {
    const int64_t unit = std::max<int64_t>(row_alignment / chunk_rows_, 1);
    const int64_t grain = std::max<int64_t>(row_grain(cols_) / chunk_rows_ / unit, 1) * unit;
    parallel_for(chunks_, grain, num_threads, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        float* sums = parts_.data() == nullptr ? nullptr : parts_.data() + chunk * cols_;
        if (sums != nullptr) {
          std::fill_n(sums, cols_, 0.0F);
        }
        body(chunk * chunk_rows_, std::min(rows_, (chunk + 1) * chunk_rows_), thread, sums);
      }
    });
  }

  // Writes the total of columns [first, first + output.cols) to `output` [1, cols] unless it is
  // not wanted; zeros for no rows.
  void total(int64_t first, const TensorView& output, int num_threads) {
    if (output.data == nullptr) {
      return;
    }
    constexpr int64_t kLineCols = 64;  // threads share no cache line of the output
    const auto kernel = TE_CPU_KERNELS(row_kernels).total;
    const int64_t grain =
        round_up(std::max<int64_t>(kGrainNumel / std::max<int64_t>(chunks_, 1), 1), kLineCols);
    parallel_for(output.cols, grain, num_threads, [&](int64_t begin, int64_t end, int) {
      kernel({.parts = parts_.data() + first + begin,
              .part_count = chunks_,
              .stride = cols_,
              .output = static_cast<char*>(output.data) + begin * element_size_bytes(output.dtype),
              .dtype = output.dtype,
              .count = end - begin});
    });
  }

 private:
  // Whole groups of the backward kernels; parts stay small against the rows they sum.
  static constexpr int64_t kMinChunkRows = 16;
  static constexpr int64_t kMaxChunks = 64;

  static int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }
  // The smallest one that is not less: chunks and quantized blocks then divide one another.
  static int64_t power_of_two(int64_t count) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  }

  const int64_t rows_;
  const int64_t cols_;
  const int64_t chunk_rows_;
  const int64_t chunks_;
  Scratch<float> parts_;
};

// A vector in FP32: the tensor's own memory where nothing changes, else a widened copy.
class FloatVector {
 public:
  FloatVector(const TensorView& view, float addend)
      : is_copied_(view.data != nullptr && (view.dtype != DType::kFloat32 || addend != 0.0F)),
        copy_(is_copied_ ? view.numel() : 0),
        data_(is_copied_ ? copy_.data() : static_cast<const float*>(view.data)) {
    if (is_copied_) {
      TE_CPU_KERNELS(row_kernels).widen(view.data, view.dtype, addend, copy_.data(), view.numel());
    }
  }
  const float* data() const { return data_; }

 private:
  const bool is_copied_;
  Scratch<float> copy_;
  const float* data_;
};

}  // namespace transformer_engine::cpu
