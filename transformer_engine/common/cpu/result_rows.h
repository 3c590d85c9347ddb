// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Where an op that works row by row puts its result: into the output, or into a buffer where only
// FP8 copies are wanted; and the FP8 copies of each slab of rows while the slab is in cache. The
// bytes are those of a separate quantization, because the same kernels read the same rounded
// values. Where the copies have one scale per block a slab is one block high, or some: too few
// slabs for the threads are ruled out, the result is then quantized as a whole afterwards.
#pragma once

#include <transformer_engine/types.h>

#include <optional>

#include "core/scratch.h"
#include "cpu/block_scaling.h"
#include "cpu/shared_maximum.h"

namespace transformer_engine::cpu {

class ResultRows {
 public:
  // `output` names shape and type; its data may be null when `quantized` is wanted.
  ResultRows(const TensorView& output, const QuantizedOutput& quantized, int num_threads);

  // Threads take whole multiples of so many rows.
  int64_t row_alignment() const { return has_aligned_slabs() ? slabs_.rows : 1; }

  // Calls kernel(row, rows, where) over parts of the rows [begin, end), for one thread. Where slabs
  // are aligned, calls for later rows may complete a slab.
  template <typename Kernel>
  void produce(int64_t begin, int64_t end, int thread, const Kernel& kernel) {
    for (int64_t row = begin; row < end;) {
      const int64_t offset = has_aligned_slabs() ? row % slabs_.rows : 0;
      const int64_t left = slabs_.rows - offset;
      const int64_t rows = end - row < left ? end - row : left;
      char* slab = slab_address(row - offset, thread);
      kernel(row, rows, static_cast<void*>(slab + offset * row_bytes_));
      if (!has_aligned_slabs()) {
        quantize_slab(row, rows, slab);
      } else if (rows == left || row + rows == output_.rows) {
        quantize_slab_in_blocks(row - offset, offset + rows, slab);
      }
      row += rows;
    }
  }

  // After all threads: writes amax and scale_inv, or quantizes what has not been.
  void finish();

 private:
  struct Slabs {
    int64_t rows;  // of one
    bool are_aligned;
    bool are_blocks_left;  // the copies with one scale per block are made afterwards
  };
  static Slabs choose_slabs(const TensorView& output, const QuantizedOutput& quantized,
                            int num_threads);

  bool has_aligned_slabs() const { return slabs_.are_aligned; }
  char* slab_address(int64_t first_row, int thread);
  void quantize_slab(int64_t row, int64_t rows, const void* values);
  void quantize_slab_in_blocks(int64_t row, int64_t rows, const char* values) const;

  const TensorView output_;
  const QuantizedOutput quantized_;
  const int num_threads_;
  const int64_t row_bytes_;
  const Slabs slabs_;
  const std::optional<BlockQuantizer> block_quantizer_;  // of aligned slabs
  const float scale_;
  // One slab per thread, or the whole result; empty when the output has data.
  Scratch<char> buffer_;
  SharedMaximum amax_;
};

}  // namespace transformer_engine::cpu
