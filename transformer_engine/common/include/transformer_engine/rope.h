// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embeddings. Channels turn in pairs (x, y), each by the angle of its own channel
// and of the token's position:
//   x' = x cos(angle_x) - y sin(angle_x)      y' = y cos(angle_y) + x sin(angle_y)
// and, transposed (the gradient),
//   x' = x cos(angle_x) + y sin(angle_y)      y' = y cos(angle_y) - x sin(angle_x)
// FP32 inside, rounded once. The two angles of a pair are equal in an ordinary table.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

// Integers of either width, on the device of the op; at most one pointer is set.
struct RopeIndices {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;

  bool is_given() const { return narrow != nullptr || wide != nullptr; }
};

// Where tokens stand in their sequences. Values are read on the device.
struct RopePlacement {
  RopeIndices start_positions;  // [batch], or [sequences] when packed: added to positions
  // Packed sequences: [sequences + 1] cumulative lengths over all ranks, divided by cp_size here. A
  // token behind the last sequence has position 0.
  RopeIndices cu_seqlens;
  int64_t sequences = 0;
  // Context parallelism: a sequence is cut into 2 cp_size equal chunks, this rank holds chunks
  // cp_rank and 2 cp_size - 1 - cp_rank.
  int64_t cp_size = 1;
  int64_t cp_rank = 0;
};

// [length, batch, groups, heads, channels]: strides in elements, channels lie side by side. Head h
// of group g is one of groups * heads; callers without groups have one.
struct RopeTensor {
  void* data = nullptr;
  int64_t position_stride = 0;
  int64_t batch_stride = 0;
  int64_t group_stride = 0;
  int64_t head_stride = 0;
};

// Angles in radians.
struct RopeTable {
  const float* angles = nullptr;  // [rows, width]; row p is for position p
  int64_t rows = 0;
  int64_t width = 0;  // channels that turn; even
};

// One tensor to rotate. Channels from `table.width` on are copied.
struct RopePart {
  RopeTensor input;
  RopeTensor output;  // must not overlap the input
  RopeTable table;
  int64_t groups = 1;
  int64_t heads = 0;  // of a group
  int64_t channels = 0;
};

inline constexpr int kRopeParts = 3;

// Up to three tensors whose tokens stand at the same positions: one pass over all. A position
// outside a part's table, which device values may ask for, turns its channels into NaN.
struct RopeArgs {
  RopePart parts[kRopeParts];
  int32_t part_count = 1;
  DType dtype = DType::kFloat32;  // of inputs and outputs: FP32, BF16 or FP16
  int64_t length = 0;             // positions of a sequence on this rank; tokens when packed
  int64_t batch = 1;              // 1 when packed
  bool is_interleaved = false;    // pairs are channels (2i, 2i + 1), else (i, i + width / 2)
  bool is_transposed = false;
  RopePlacement placement;
};
void rope(const RopeArgs& args, const Context& context);

}  // namespace transformer_engine
