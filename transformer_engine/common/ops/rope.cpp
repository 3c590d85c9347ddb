// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/rope.h>

#include <limits>

#include "core/checks.h"
#include "cpu/rope.h"
#include "ops/candidates.h"
#include "reference/rope.h"

namespace transformer_engine {

namespace {

constexpr char kOp[] = "rope";

void check_placement(const RopeArgs& args) {
  const RopePlacement& place = args.placement;
  TE_CHECK(args.length >= 0 && args.batch >= 0, kOp, ": length is ", args.length, " and batch ",
           args.batch, "; 0 or more are required.");
  TE_CHECK(place.cp_size > 0 && place.cp_rank >= 0 && place.cp_rank < place.cp_size, kOp,
           ": cp_rank is ", place.cp_rank, " and cp_size ", place.cp_size,
           "; 0 <= cp_rank < cp_size is required.");
  for (const RopeIndices& indices : {place.start_positions, place.cu_seqlens}) {
    TE_CHECK(indices.narrow == nullptr || indices.wide == nullptr, kOp,
             ": indices have 32 and 64 bits; one width is required.");
  }
  if (place.cu_seqlens.is_given()) {
    TE_CHECK(args.batch == 1 && place.sequences > 0, kOp, ": batch is ", args.batch,
             " with packed sequences, of which there are ", place.sequences,
             "; batch 1 and at least one sequence are required.");
  } else {
    TE_CHECK(place.cp_size == 1 || args.length % 2 == 0, kOp, ": length is ", args.length,
             " with cp_size ", place.cp_size, "; two equal chunks are required.");
  }
}

void check_part(const RopeArgs& args, int index) {
  const RopePart& part = args.parts[index];
  TE_CHECK(part.groups >= 0 && part.heads >= 0 && part.channels >= 0, kOp, ": part ", index,
           " has ", part.groups, " groups of ", part.heads, " heads of ", part.channels,
           " channels; sizes of 0 or more are required.");
  constexpr int64_t kMostHeads = std::numeric_limits<int32_t>::max();
  TE_CHECK(part.heads == 0 || part.groups <= kMostHeads / part.heads, kOp, ": part ", index,
           " has ", part.groups, " groups of ", part.heads,
           " heads; at most 2^31 - 1 heads are "
           "possible.");
  const RopeTable& table = part.table;
  TE_CHECK(table.width >= 0 && table.width % 2 == 0 && table.width <= part.channels, kOp,
           ": the table of part ", index, " has width ", table.width, " for ", part.channels,
           " channels; an even number of at most as many is required.");
  const bool is_empty = part.groups * part.heads * part.channels * args.length * args.batch == 0;
  TE_CHECK(is_empty || (part.input.data != nullptr && part.output.data != nullptr), kOp, ": part ",
           index, " has no data; pointers to input and output are required.");
  TE_CHECK(table.rows >= 0 && (table.angles != nullptr || table.rows * table.width == 0), kOp,
           ": the table of part ", index, " has ", table.rows,
           " rows and no data; a pointer to the angles is required.");
  const RopePlacement& place = args.placement;
  if (!is_empty && table.width > 0 && !place.cu_seqlens.is_given() &&
      !place.start_positions.is_given()) {
    TE_CHECK(args.length <= table.rows / place.cp_size, kOp, ": the table of part ", index, " has ",
             table.rows, " rows; ", args.length, " times cp_size ", place.cp_size,
             " are required.");
  }
}

}  // namespace

void rope(const RopeArgs& args, const Context& context) {
  TE_CHECK(args.part_count > 0 && args.part_count <= kRopeParts, kOp, ": part_count is ",
           args.part_count, "; 1 to ", kRopeParts, " is required.");
  TE_CHECK_TYPE(is_high_precision(args.dtype), kOp, ": dtype is ", dtype_name(args.dtype),
                "; float32, float16 or bfloat16 is required.");
  check_placement(args);
  for (int index = 0; index < args.part_count; ++index) {
    check_part(args, index);
  }
  run_first_candidate(kOp, kCandidates<RopeArgs, &cpu::rope, &reference::rope>, args, context);
}

}  // namespace transformer_engine
