// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernel of cuda/rope.cu against the FP64 rotation with derived bounds.
#include <gtest/gtest.h>
#include <transformer_engine/rope.h>

#include "cuda/device_mirror.h"
#include "helpers/rope_problem.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::RopeArgs;
using te::testing::check_rope;
using te::testing::DeviceMirror;
using te::testing::is_too_large;
using te::testing::kHighPrecision;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::kRopeLayouts;
using te::testing::kRopePlaces;
using te::testing::Matrix;
using Layout = te::testing::RopeLayout;
using Place = te::testing::RopePlace;
using Problem = te::testing::RopeProblem;
using Shape = te::testing::RopeShape;

// With vectors of 8 pairs and of 4, and without; more pairs than a block holds; many small tokens.
constexpr Shape kShapes[] = {
    {12, 1, 2, 3, 32, 32}, {12, 1, 1, 2, 40, 16},    {12, 1, 1, 2, 24, 8},    {12, 1, 1, 3, 7, 6},
    {12, 1, 3, 1, 16, 0},  {8, 1, 1, 1, 1064, 1056}, {8, 1, 1, 1, 1034, 1034}};

te::RopeIndices on_device(const te::testing::RopeIntegers& integers, DeviceMirror& mirror) {
  const te::RopeIndices host = integers.indices();
  return {.narrow = mirror.pointer(host.narrow, integers.values().size()),
          .wide = mirror.pointer(host.wide, integers.values().size())};
}

// A part whose memory belongs to `problem`.
te::RopePart on_device(Problem& problem, DeviceMirror& mirror) {
  te::RopePart part = problem.args().parts[0];
  part.input.data = mirror.view(problem.input()).data;
  part.output.data = mirror.view(problem.output()).data;
  part.table.angles = static_cast<const float*>(mirror.view(problem.angles()).data);
  return part;
}

void run_on_device(Problem& problem) {
  DeviceMirror mirror;
  RopeArgs args = problem.args();
  args.parts[0] = on_device(problem, mirror);
  args.placement.start_positions = on_device(problem.start(), mirror);
  args.placement.cu_seqlens = on_device(problem.cu_seqlens(), mirror);
  te::rope(args, kOnDevice);
  mirror.download();
}

TEST(CudaRope, MatchesTheFormulaForEveryLayoutAndPlacement) {
  for (const DType dtype : kHighPrecision) {
    for (const Shape& shape : kShapes) {
      for (const Layout layout : kRopeLayouts) {
        for (const Place place : kRopePlaces) {
          for (const int variant : {0, 1, 2, 3}) {
            const bool is_packed = place == Place::kPacked || place == Place::kPackedChunks;
            Shape whole = shape;
            whole.batch = is_packed ? 1 : 2;
            Problem problem(whole, dtype, layout, place, variant % 2 == 1);
            const bool is_rare = dtype != DType::kBFloat16 || variant % 3 != 0 ||
                                 layout == Layout::kBatchFirst || place == Place::kChunks;
            const bool is_long = shape.width > 1000;
            if (is_too_large(problem.output().numel()) || (kIsSlowDevice && is_rare) ||
                (is_long && (is_rare || place == Place::kStart))) {
              continue;
            }
            SCOPED_TRACE(::testing::Message()
                         << te::dtype_name(dtype) << " layout " << static_cast<int>(layout)
                         << " place " << static_cast<int>(place) << " variant " << variant
                         << " channels " << shape.channels << " width " << shape.width);
            problem.is_interleaved = variant % 2 == 1;
            problem.is_transposed = variant / 2 == 1;
            check_rope(problem, &run_on_device);
          }
        }
      }
    }
  }
}

TEST(CudaRope, MatchesTheFormulaForManyTokens) {
  for (const Shape& shape : {Shape{9001, 1, 1, 1, 2, 2}, Shape{701, 5, 1, 1, 16, 16}}) {
    Problem problem(shape, DType::kBFloat16, Layout::kBatchFirst, Place::kPlain);
    if (!is_too_large(problem.output().numel())) {
      check_rope(problem, &run_on_device);
    }
  }
}

TEST(CudaRope, LargeAnglesKeepTheirPrecision) {
  for (const float spread : {1e4F, 0x1p17F, 1e9F, 1e30F}) {
    Problem problem({4, 2, 1, 2, 16, 16}, DType::kFloat32, Layout::kSequenceFirst, Place::kPlain);
    te::testing::fill_normal(problem.angles(), 5, 0.0F, spread);
    check_rope(problem, &run_on_device);
  }
}

TEST(CudaRope, APositionOutsideTheTableGivesNaNInTheChannelsThatTurn) {
  for (const int64_t start : {-1, 2, 1 << 30}) {
    Problem problem({4, 2, 1, 1, 6, 4}, DType::kBFloat16, Layout::kSequenceFirst, Place::kPlain);
    const std::vector<int64_t> starts = {0, start};
    const te::testing::RopeIntegers integers(starts, true);
    DeviceMirror mirror;
    RopeArgs args = problem.args();
    args.parts[0] = on_device(problem, mirror);
    args.placement.start_positions = on_device(integers, mirror);
    te::rope(args, kOnDevice);
    mirror.download();
    for (int64_t position = 0; position < 4; ++position) {
      const int64_t row = position + start;
      for (int64_t channel = 0; channel < 6; ++channel) {
        const int64_t at = problem.offset(position, 1, 0, 0) + channel;
        EXPECT_EQ(std::isnan(problem.output().get(at)), channel < 4 && (row < 0 || row >= 4));
        EXPECT_FALSE(std::isnan(problem.output().get(at - 6)));
      }
    }
  }
}

// What cu_seqlens must be is not known on the host: any values stay within the memory.
TEST(CudaRope, SenselessCumulativeLengthsAreHarmless) {
  Problem problem({10, 1, 1, 2, 16, 16}, DType::kFloat32, Layout::kSequenceFirst, Place::kPacked);
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{7, 3, -4}, {0, 0, 0}, {-9, 1000000, 5}, {50, 60, 70}}) {
    const te::testing::RopeIntegers integers(ends, false);
    DeviceMirror mirror;
    RopeArgs args = problem.args();
    args.parts[0] = on_device(problem, mirror);
    args.placement.start_positions = on_device(problem.start(), mirror);
    args.placement.cu_seqlens = on_device(integers, mirror);
    args.placement.sequences = 2;
    te::rope(args, kOnDevice);
    mirror.download();
  }
}

TEST(CudaRope, PartsHaveTheirOwnTables) {
  for (const bool is_shared : {false, true}) {
    Problem whole({6, 2, 2, 3, 16, 16}, DType::kFloat16, Layout::kSequenceFirst, Place::kPlain);
    Problem second({6, 2, 2, 1, 32, 16}, DType::kFloat16, Layout::kGapsOf8, Place::kPlain);
    Problem copied({6, 2, 2, 1, 8, 0}, DType::kFloat16, Layout::kBatchFirst, Place::kPlain);
    te::testing::fill_normal(second.angles(), is_shared ? 3 : 4, 0.0F, 30.0F);
    DeviceMirror mirror;
    RopeArgs args = whole.args();
    args.part_count = 3;
    args.parts[0] = on_device(whole, mirror);
    args.parts[1] = on_device(second, mirror);
    args.parts[2] = on_device(copied, mirror);
    if (is_shared) {
      args.parts[1].table = args.parts[0].table;
    }
    for (int64_t i = 0; i < second.output().numel(); ++i) {
      second.output().set(i, 0.0F);
    }
    te::rope(args, kOnDevice);
    mirror.download();
    for (Problem* const problem : {&whole, &second, &copied}) {
      for (int64_t i = 0; i < problem->output().numel(); ++i) {
        if (problem == &second && i % 40 >= 32) {
          problem->output().set(i, 0.0F);  // between heads: what was there
        }
      }
      EXPECT_TRUE(te::testing::all_close(problem->output(), problem->expected()));
    }
  }
}

TEST(CudaRope, EmptyIsOrdinary) {
  for (const Shape& shape : te::testing::kEmptyRopeShapes) {
    const RopeArgs args = te::testing::empty_rope_args(shape);
    te::rope(args, kOnDevice);
  }
}

}  // namespace
