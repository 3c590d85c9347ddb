// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tokens are shared out to threads in the order of their positions. A thread keeps the sines and
// cosines of its last position and uses them for every head and, where the sequences of a batch
// start alike, for every sequence.
#include "cpu/rope.h"

#include <cmath>
#include <limits>

#include "cpu/rope_kernels.h"
#include "cpu/row_work.h"
#include "numerics/rope_positions.h"

namespace transformer_engine::cpu {

namespace {

// Coefficients of the position that a thread works on, for one part.
class Coefficients {
 public:
  Coefficients(const RopeArgs& args, const RopeTable& table, float* scratch)  // [4 * width]
      : table_(table),
        is_interleaved_(args.is_interleaved),
        is_transposed_(args.is_transposed),
        cos_(scratch),
        sin_(scratch + table.width),
        plain_sin_(scratch + 2 * table.width),
        nothing_(scratch + 3 * table.width) {}

  void move_to(int64_t position) {
    const int64_t row = position >= 0 && position < table_.rows ? position : kOutside;
    if (row == row_) {
      return;
    }
    row_ = row;
    compute_sin_cos(row);
    for (int64_t pair = 0; pair < table_.width / 2; ++pair) {
      const auto [x, y] = numerics::rope_pair(pair, table_.width, is_interleaved_);
      sin_[x] = is_transposed_ ? plain_sin_[y] : -plain_sin_[x];
      sin_[y] = is_transposed_ ? -plain_sin_[x] : plain_sin_[y];
    }
  }
  const float* cos() const { return cos_; }
  const float* sin() const { return sin_; }

 private:
  static constexpr int64_t kOutside = -1;
  static constexpr int64_t kNone = -2;

  void compute_sin_cos(int64_t row) {
    const float* angles = nothing_;
    if (row == kOutside) {
      std::fill_n(nothing_, table_.width, std::numeric_limits<float>::quiet_NaN());
    } else {
      angles = table_.angles + row * table_.width;
    }
    if (!TE_CPU_KERNELS(rope_kernels).sin_cos(angles, plain_sin_, cos_, table_.width)) {
      return;
    }
    for (int64_t i = 0; i < table_.width; ++i) {
      if (std::fabs(angles[i]) > kRopeVectorLimit) {
        plain_sin_[i] = static_cast<float>(std::sin(static_cast<double>(angles[i])));
        cos_[i] = static_cast<float>(std::cos(static_cast<double>(angles[i])));
      }
    }
  }

  const RopeTable table_;
  const bool is_interleaved_;
  const bool is_transposed_;
  float* const cos_;
  float* const sin_;
  float* const plain_sin_;
  float* const nothing_;
  int64_t row_ = kNone;
};

struct Token {
  int64_t position, sequence;
};

void* address(const RopeTensor& tensor, const Token& token, DType dtype) {
  return static_cast<char*>(tensor.data) +
         numerics::rope_offset(tensor, token.position, token.sequence, 0, 0) *
             element_size_bytes(dtype);
}

void rotate_part(const RopeArgs& args, const RopePart& part, int64_t begin, int64_t end,
                 float* scratch) {
  const auto kernel = TE_CPU_KERNELS(rope_kernels)
                          .rotate[high_precision_index(args.dtype)][args.is_interleaved ? 1 : 0];
  Coefficients coefficients(args, part.table, scratch);
  for (int64_t index = begin; index < end; ++index) {
    const Token token{index / args.batch, index % args.batch};
    coefficients.move_to(
        numerics::rope_position(args.placement, args.length, token.position, token.sequence));
    kernel({.input = address(part.input, token, args.dtype),
            .output = address(part.output, token, args.dtype),
            .cos = coefficients.cos(),
            .sin = coefficients.sin(),
            .width = part.table.width,
            .channels = part.channels,
            .groups = part.groups,
            .heads = part.heads,
            .input_group_stride = part.input.group_stride,
            .input_head_stride = part.input.head_stride,
            .output_group_stride = part.output.group_stride,
            .output_head_stride = part.output.head_stride});
  }
}

}  // namespace

void rope(const RopeArgs& args, const Context& context) {
  int64_t width = 0;
  int64_t numel = 0;  // of a token
  for (int index = 0; index < args.part_count; ++index) {
    const RopePart& part = args.parts[index];
    width = std::max(width, part.table.width);
    numel += part.groups * part.heads * part.channels;
  }
  if (numel == 0) {
    return;
  }
  Scratch<float> scratch(4 * width * std::max(context.num_threads, 1));
  parallel_for(args.length * args.batch, row_grain(numel), context.num_threads,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int index = 0; index < args.part_count; ++index) {
                   rotate_part(args, args.parts[index], begin, end,
                               scratch.data() + 4 * width * thread);
                 }
               });
}

}  // namespace transformer_engine::cpu
