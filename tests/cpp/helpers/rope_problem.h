// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Problems of rope, and what any implementation must give for them: positions written out sequence
// by sequence, and the FP64 rotation with derived bounds.
#pragma once

#include <transformer_engine/rope.h>

#include <algorithm>
#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

struct RopeShape {
  int64_t length, batch, groups, heads, channels, width;
};

// [length, batch, ..], [batch, length, ..], and the first with a gap of so many elements behind
// each head, so that heads begin on 16 bytes or not.
enum class RopeLayout { kSequenceFirst, kBatchFirst, kGapsOf8, kGapsOf1 };
inline constexpr RopeLayout kRopeLayouts[] = {RopeLayout::kSequenceFirst, RopeLayout::kBatchFirst,
                                              RopeLayout::kGapsOf8, RopeLayout::kGapsOf1};

enum class RopePlace { kPlain, kStart, kChunks, kChunksAndStart, kPacked, kPackedChunks };
inline constexpr RopePlace kRopePlaces[] = {RopePlace::kPlain,  RopePlace::kStart,
                                            RopePlace::kChunks, RopePlace::kChunksAndStart,
                                            RopePlace::kPacked, RopePlace::kPackedChunks};

// Integers of one width or the other.
class RopeIntegers {
 public:
  RopeIntegers() = default;
  RopeIntegers(std::vector<int64_t> values, bool is_wide)
      : wide_(values), narrow_(values.begin(), values.end()), is_wide_(is_wide) {}
  RopeIndices indices() const {
    return {.narrow = is_wide_ || wide_.empty() ? nullptr : narrow_.data(),
            .wide = is_wide_ && !wide_.empty() ? wide_.data() : nullptr};
  }
  const std::vector<int64_t>& values() const { return wide_; }

 private:
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
  bool is_wide_ = false;
};

// Positions of the tokens of a rank, as the definition words it: two chunks of 2 cp_size.
inline std::vector<int64_t> rope_chunk_positions(int64_t length, int64_t cp_size, int64_t cp_rank) {
  const int64_t chunk = length / 2;
  std::vector<int64_t> positions;
  for (const int64_t index : {cp_rank, 2 * cp_size - 1 - cp_rank}) {
    for (int64_t i = 0; i < chunk; ++i) {
      positions.push_back(index * chunk + i);
    }
  }
  return positions;
}

inline Matrix rope_angles(int64_t rows, int64_t width, uint32_t seed, float spread = 30.0F) {
  Matrix angles(DType::kFloat32, rows, width);
  fill_normal(angles, seed, 0.0F, spread);
  return angles;
}

class RopeProblem {
 public:
  RopeShape shape;
  DType dtype;
  bool is_interleaved = false;
  bool is_transposed = false;

  RopeProblem(RopeShape problem_shape, DType type, RopeLayout layout, RopePlace place,
              bool has_wide_indices = false)
      : shape(problem_shape), dtype(type), wide_(has_wide_indices) {
    set_placement(place);
    set_strides(layout);
    const int64_t rows = std::max(shape.length * cp_size_,
                                  1 + *std::max_element(positions_.begin(), positions_.end()));
    angles_.push_back(rope_angles(rows, shape.width, 3));
    input_.emplace_back(dtype, 1, extent_);
    output_.emplace_back(dtype, 1, extent_);
    fill_normal(input_[0], 1);
  }

  // Argument structs point to this object's memory.
  RopeArgs args() {
    RopeArgs args;
    args.parts[0] = {.input = tensor(input_[0]),
                     .output = tensor(output_[0]),
                     .table = {angles().data<float>(), angles().rows(), shape.width},
                     .groups = shape.groups,
                     .heads = shape.heads,
                     .channels = shape.channels};
    args.dtype = dtype;
    args.length = shape.length;
    args.batch = shape.batch;
    args.is_interleaved = is_interleaved;
    args.is_transposed = is_transposed;
    args.placement = {.start_positions = start_.indices(),
                      .cu_seqlens = cu_seqlens_.indices(),
                      .sequences = static_cast<int64_t>(cu_seqlens_.values().size()) - 1,
                      .cp_size = cp_size_,
                      .cp_rank = cp_rank_};
    return args;
  }
  Matrix& input() { return input_[0]; }
  Matrix& output() { return output_[0]; }
  Matrix& angles() { return angles_[0]; }
  const RopeIntegers& start() const { return start_; }
  const RopeIntegers& cu_seqlens() const { return cu_seqlens_; }

  // Of token (position, sequence).
  int64_t position_of(int64_t position, int64_t sequence) const {
    return positions_[static_cast<size_t>(position * shape.batch + sequence)];
  }
  int64_t offset(int64_t position, int64_t sequence, int64_t group, int64_t head) const {
    return position * strides_.position_stride + sequence * strides_.batch_stride +
           group * strides_.group_stride + head * strides_.head_stride;
  }

  // Every element of the output's memory: what lies between heads is still 0.
  std::vector<Expected> expected() {
    std::vector<Expected> result(static_cast<size_t>(extent_));
    for (int64_t position = 0; position < shape.length; ++position) {
      for (int64_t sequence = 0; sequence < shape.batch; ++sequence) {
        for (int64_t group = 0; group < shape.groups; ++group) {
          for (int64_t head = 0; head < shape.heads; ++head) {
            expect_head(offset(position, sequence, group, head), position_of(position, sequence),
                        &result);
          }
        }
      }
    }
    return result;
  }

 private:
  // x c + y s. c and s are good to 2 ulp of FP32, 4 units of roundoff; the product of y and s is
  // rounded, then the sum.
  static Expected turned(double x, double c, double y, double s) {
    const double value = x * c + y * s;
    const double products = std::abs(x * c) + std::abs(y * s);
    return {value, kFloatRoundoff * (4 * products + std::abs(y * s) + 2 * std::abs(value)) +
                       half_spacing(DType::kFloat32)};
  }

  void expect_head(int64_t first, int64_t row, std::vector<Expected>* result) {
    Expected* const out = result->data() + first;
    for (int64_t channel = shape.width; channel < shape.channels; ++channel) {
      out[channel].value = input().get(first + channel);
    }
    for (int64_t pair = 0; pair < shape.width / 2; ++pair) {
      const int64_t a = is_interleaved ? 2 * pair : pair;
      const int64_t b = is_interleaved ? a + 1 : pair + shape.width / 2;
      const double x = input().get(first + a);
      const double y = input().get(first + b);
      const double angle_a = angles().get(row * shape.width + a);
      const double angle_b = angles().get(row * shape.width + b);
      if (is_transposed) {
        out[a] = turned(x, std::cos(angle_a), y, std::sin(angle_b));
        out[b] = turned(y, std::cos(angle_b), x, -std::sin(angle_a));
      } else {
        out[a] = turned(x, std::cos(angle_a), y, -std::sin(angle_a));
        out[b] = turned(y, std::cos(angle_b), x, std::sin(angle_b));
      }
    }
  }

  void set_placement(RopePlace place) {
    const bool has_start = place == RopePlace::kStart || place == RopePlace::kChunksAndStart;
    const bool has_chunks = place == RopePlace::kChunks || place == RopePlace::kChunksAndStart ||
                            place == RopePlace::kPackedChunks;
    cp_size_ = has_chunks ? 3 : 1;
    cp_rank_ = has_chunks ? 1 : 0;
    if (place == RopePlace::kPacked || place == RopePlace::kPackedChunks) {
      pack();
      return;
    }
    std::vector<int64_t> start(static_cast<size_t>(shape.batch), 0);
    for (int64_t sequence = 0; has_start && sequence < shape.batch; ++sequence) {
      start[static_cast<size_t>(sequence)] = (5 * sequence + 3) % 7;
    }
    std::vector<int64_t> local;
    for (int64_t position = 0; position < shape.length; ++position) {
      local.push_back(position);
    }
    if (has_chunks) {
      local = rope_chunk_positions(shape.length, cp_size_, cp_rank_);
    }
    for (const int64_t position : local) {
      for (const int64_t first : start) {
        positions_.push_back(position + first);
      }
    }
    if (has_start) {
      start_ = RopeIntegers(start, wide_);
    }
  }

  // Four sequences, one of them empty, and two tokens that belong to none.
  void pack() {
    const int64_t chunks = cp_size_ > 1 ? 2 : 1;
    const int64_t first = chunks;
    const int64_t last = (shape.length - 2 - 3 * first) / chunks * chunks;
    const std::vector<int64_t> lengths = {first, 0, 2 * first, last};
    const std::vector<int64_t> start = {4, 9, 0, 2};
    std::vector<int64_t> ends = {0};
    for (size_t i = 0; i < lengths.size(); ++i) {
      ends.push_back(ends.back() + lengths[i] * cp_size_);
      std::vector<int64_t> local = rope_chunk_positions(lengths[i], cp_size_, cp_rank_);
      if (cp_size_ == 1) {
        local.clear();
        for (int64_t position = 0; position < lengths[i]; ++position) {
          local.push_back(position);
        }
      }
      for (const int64_t position : local) {
        positions_.push_back(position + start[i]);
      }
    }
    positions_.resize(static_cast<size_t>(shape.length), 0);
    start_ = RopeIntegers(start, wide_);
    cu_seqlens_ = RopeIntegers(ends, wide_);
  }

  void set_strides(RopeLayout layout) {
    const int64_t gap = layout == RopeLayout::kGapsOf8 ? 8 : layout == RopeLayout::kGapsOf1 ? 1 : 0;
    strides_.head_stride = shape.channels + gap;
    strides_.group_stride = shape.heads * strides_.head_stride;
    const int64_t token = shape.groups * strides_.group_stride;
    const bool is_batch_first = layout == RopeLayout::kBatchFirst;
    strides_.position_stride = is_batch_first ? token : shape.batch * token;
    strides_.batch_stride = is_batch_first ? shape.length * token : token;
    extent_ = shape.length * shape.batch * token;
  }
  RopeTensor tensor(Matrix& memory) {
    RopeTensor result = strides_;
    result.data = memory.data<void>();
    return result;
  }

  bool wide_;
  int64_t cp_size_ = 1;
  int64_t cp_rank_ = 0;
  RopeIntegers start_, cu_seqlens_;
  std::vector<int64_t> positions_;  // [length, batch]
  RopeTensor strides_;
  int64_t extent_ = 0;
  // Filled at most once; vectors, because a matrix has no empty state.
  std::vector<Matrix> input_, output_, angles_;
};

inline constexpr RopeShape kEmptyRopeShapes[] = {{0, 2, 1, 3, 4, 4},
                                                 {3, 0, 1, 3, 4, 4},
                                                 {3, 2, 0, 3, 4, 4},
                                                 {3, 2, 1, 0, 4, 4},
                                                 {3, 2, 1, 3, 0, 0}};
inline RopeArgs empty_rope_args(const RopeShape& shape) {
  RopeArgs args;
  args.parts[0].groups = shape.groups;
  args.parts[0].heads = shape.heads;
  args.parts[0].channels = shape.channels;
  args.length = shape.length;
  args.batch = shape.batch;
  return args;
}

using RopeFunction = void (*)(RopeProblem& problem);

inline void check_rope(RopeProblem& problem, RopeFunction run) {
  for (int64_t i = 0; i < problem.output().numel(); ++i) {
    problem.output().set(i, 0.0F);
  }
  run(problem);
  EXPECT_TRUE(all_close(problem.output(), problem.expected()));
}

}  // namespace transformer_engine::testing
