// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Where an op that works row by row puts its result: into the output, or into a buffer where only
// the FP8 copy is wanted; and the FP8 copy of each block of rows while the block is in cache. The
// bytes are those of a separate quantization, because the same kernels read the same rounded
// values.
#pragma once

#include <transformer_engine/types.h>

#include "core/scratch.h"
#include "cpu/shared_maximum.h"

namespace transformer_engine::cpu {

class ResultRows {
 public:
  // `output` names shape and type; its data may be null when `quantized` is wanted.
  ResultRows(const TensorView& output, const QuantizedOutput& quantized, int num_threads);

  // Calls kernel(row, rows, where) over the blocks of rows [begin, end), for one thread.
  template <typename Kernel>
  void produce(int64_t begin, int64_t end, int thread, const Kernel& kernel) {
    for (int64_t row = begin; row < end; row += block_rows_) {
      const int64_t rows = end - row < block_rows_ ? end - row : block_rows_;
      void* where = address_of(row, thread);
      kernel(row, rows, where);
      quantize_block(row, rows, where);
    }
  }

  // After all threads: writes amax and scale_inv.
  void finish();

 private:
  void* address_of(int64_t row, int thread);
  void quantize_block(int64_t row, int64_t rows, const void* values);

  const TensorView output_;
  const QuantizedOutput quantized_;
  const int64_t row_bytes_;
  const int64_t block_rows_;
  const float scale_;
  Scratch<char> buffer_;  // one block per thread; empty when the output has data
  SharedMaximum amax_;
};

}  // namespace transformer_engine::cpu
