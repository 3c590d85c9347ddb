// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/rope.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "numerics/rope_positions.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

// NaN for a position outside the table.
double angle(const RopeTable& table, int64_t position, int64_t channel) {
  return position >= 0 && position < table.rows
             ? static_cast<double>(table.angles[position * table.width + channel])
             : std::numeric_limits<double>::quiet_NaN();
}

void rotate_head(const RopeArgs& args, const RopeTable& table, int64_t position,
                 const TensorView& input, const TensorView& output) {
  for (int64_t pair = 0; pair < table.width / 2; ++pair) {
    const auto [first, second] = numerics::rope_pair(pair, table.width, args.is_interleaved);
    const double x = load_float(input, first);
    const double y = load_float(input, second);
    const double angle_x = angle(table, position, first);
    const double angle_y = angle(table, position, second);
    const double from_y = args.is_transposed ? std::sin(angle_y) : -std::sin(angle_x);
    const double from_x = args.is_transposed ? -std::sin(angle_x) : std::sin(angle_y);
    store_float(output, first, static_cast<float>(x * std::cos(angle_x) + y * from_y));
    store_float(output, second, static_cast<float>(y * std::cos(angle_y) + x * from_x));
  }
}

void rotate_token(const RopeArgs& args, const RopePart& part, int64_t position, int64_t sequence) {
  const int64_t size = element_size_bytes(args.dtype);
  const int64_t row = numerics::rope_position(args.placement, args.length, position, sequence);
  for (int64_t group = 0; group < part.groups; ++group) {
    for (int64_t head = 0; head < part.heads; ++head) {
      const auto view = [&](const RopeTensor& tensor) {
        const int64_t offset = numerics::rope_offset(tensor, position, sequence, group, head);
        return TensorView{.data = static_cast<char*>(tensor.data) + offset * size,
                          .dtype = args.dtype,
                          .rows = 1,
                          .cols = part.channels};
      };
      const TensorView input = view(part.input);
      const TensorView output = view(part.output);
      rotate_head(args, part.table, row, input, output);
      std::memcpy(static_cast<char*>(output.data) + part.table.width * size,
                  static_cast<const char*>(input.data) + part.table.width * size,
                  static_cast<size_t>((part.channels - part.table.width) * size));
    }
  }
}

}  // namespace

void rope(const RopeArgs& args, const Context&) {
  for (int index = 0; index < args.part_count; ++index) {
    for (int64_t position = 0; position < args.length; ++position) {
      for (int64_t sequence = 0; sequence < args.batch; ++sequence) {
        rotate_token(args, args.parts[index], position, sequence);
      }
    }
  }
}

}  // namespace transformer_engine::reference
