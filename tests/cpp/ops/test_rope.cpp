// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rotary embeddings against the FP64 rotation with derived bounds, all layouts and placements; what
// is refused.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/rope.h>

#include <cstring>

#include "cpu/rope_kernels.h"
#include "helpers/errors.h"
#include "helpers/isas.h"
#include "helpers/rope_problem.h"
#include "reference/rope.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::RopeArgs;
using te::testing::check_rope;
using te::testing::expect_error;
using te::testing::kHighPrecision;
using te::testing::kRopeLayouts;
using te::testing::kRopePlaces;
using te::testing::Matrix;
using Layout = te::testing::RopeLayout;
using Place = te::testing::RopePlace;
using Problem = te::testing::RopeProblem;
using Shape = te::testing::RopeShape;

// Whole and partial rotations, in packs, vectors and less than a vector.
const Shape kShapes[] = {{12, 1, 1, 3, 128, 128}, {16, 1, 2, 2, 96, 64}, {12, 1, 1, 1, 6, 2},
                         {12, 1, 1, 2, 34, 34},   {12, 1, 3, 1, 5, 0},   {12, 1, 1, 1, 300, 298}};

void run_cpu(Problem& problem) { te::rope(problem.args(), {.num_threads = 2}); }
void run_reference(Problem& problem) { te::reference::rope(problem.args(), {}); }

bool is_packed(Place place) { return place == Place::kPacked || place == Place::kPackedChunks; }

void check_everywhere(Shape shape, DType dtype, te::testing::RopeFunction run) {
  for (const Layout layout : kRopeLayouts) {
    for (const Place place : kRopePlaces) {
      for (const int variant : {0, 1, 2, 3}) {
        shape.batch = is_packed(place) ? 1 : 3;
        SCOPED_TRACE(::testing::Message()
                     << te::dtype_name(dtype) << " layout " << static_cast<int>(layout) << " place "
                     << static_cast<int>(place) << " variant " << variant << " channels "
                     << shape.channels << " width " << shape.width);
        Problem problem(shape, dtype, layout, place, variant % 2 == 1);
        problem.is_interleaved = variant % 2 == 1;
        problem.is_transposed = variant / 2 == 1;
        check_rope(problem, run);
      }
    }
  }
}

TEST(Rope, MatchesTheFormulaForEveryLayoutAndPlacement) {
  for (const DType dtype : kHighPrecision) {
    for (const Shape& shape : kShapes) {
      check_everywhere(shape, dtype, &run_cpu);
    }
  }
}

TEST(Rope, TheReferenceMatchesTheFormula) {
  for (const Shape& shape : {kShapes[1], kShapes[2]}) {
    check_everywhere(shape, DType::kBFloat16, &run_reference);
  }
}

// Sine and cosine are good to 2 ulp on both sides of where the vector code ends.
TEST(Rope, LargeAnglesKeepTheirPrecision) {
  for (const float spread : {1e4F, 0x1p17F, 1e9F, 1e30F}) {
    Problem problem({12, 2, 1, 2, 64, 64}, DType::kFloat32, Layout::kSequenceFirst, Place::kPlain);
    te::testing::fill_normal(problem.angles(), 5, 0.0F, spread);
    check_rope(problem, &run_cpu);
  }
}

TEST(Rope, InfiniteAnglesGiveNaNInTheirPairAlone) {
  Problem problem({2, 1, 1, 1, 8, 8}, DType::kFloat32, Layout::kSequenceFirst, Place::kPlain);
  problem.angles().set(8 + 1, HUGE_VALF);
  run_cpu(problem);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(std::isnan(problem.output().get(i)), i == 8 + 1) << i;
  }
}

TEST(Rope, APositionOutsideTheTableGivesNaNInTheChannelsThatTurn) {
  Problem problem({4, 2, 1, 1, 6, 4}, DType::kBFloat16, Layout::kSequenceFirst, Place::kStart);
  RopeArgs args = problem.args();
  const int64_t starts[] = {-1, 2};
  args.placement.start_positions = {.wide = starts};
  args.parts[0].table.rows = 5;
  te::rope(args, {});
  for (int64_t position = 0; position < 4; ++position) {
    for (int64_t sequence = 0; sequence < 2; ++sequence) {
      const int64_t row = position + starts[sequence];
      for (int64_t channel = 0; channel < 6; ++channel) {
        const int64_t at = problem.offset(position, sequence, 0, 0) + channel;
        EXPECT_EQ(std::isnan(problem.output().get(at)), channel < 4 && (row < 0 || row >= 5));
        if (channel >= 4) {
          EXPECT_EQ(problem.output().get(at), problem.input().get(at));
        }
      }
    }
  }
}

TEST(Rope, PartsHaveTheirOwnTables) {
  Problem whole({6, 2, 2, 3, 16, 16}, DType::kFloat16, Layout::kSequenceFirst, Place::kPlain);
  Problem partial({6, 2, 2, 1, 16, 8}, DType::kFloat16, Layout::kGapsOf1, Place::kPlain);
  Problem copied({6, 2, 2, 1, 5, 0}, DType::kFloat16, Layout::kBatchFirst, Place::kPlain);
  RopeArgs args = whole.args();
  args.part_count = 3;
  args.parts[1] = partial.args().parts[0];
  args.parts[2] = copied.args().parts[0];
  // All tensors of a call have the strides of their own layout.
  for (int64_t i = 0; i < partial.output().numel(); ++i) {
    partial.output().set(i, 0.0F);
  }
  te::rope(args, {.num_threads = 2});
  for (Problem* const problem : {&whole, &partial, &copied}) {
    EXPECT_TRUE(te::testing::all_close(problem->output(), problem->expected()));
  }
}

TEST(Rope, AnyNumberOfThreadsGivesTheSameBits) {
  Problem one({512, 2, 1, 2, 64, 64}, DType::kBFloat16, Layout::kSequenceFirst, Place::kPlain);
  Problem many({512, 2, 1, 2, 64, 64}, DType::kBFloat16, Layout::kSequenceFirst, Place::kPlain);
  te::rope(one.args(), {.num_threads = 1});
  te::rope(many.args(), {.num_threads = 5});
  EXPECT_TRUE(te::testing::same_bytes(many.output(), one.output()));
}

TEST(RopeKernels, EveryInstructionSetGivesTheSameBits) {
  const auto tables = TE_TABLES_OF(te::cpu::RopeKernels, rope_kernels);
  for (const int64_t width : {2, 30, 64, 130}) {
    for (const int interleaved : {0, 1}) {
      for (const DType dtype : kHighPrecision) {
        Matrix angles = te::testing::rope_angles(2, width, 3);
        Matrix input(dtype, 1, width + 3), first(dtype, 1, width + 3);
        te::testing::fill_normal(input, 1);
        for (size_t isa = 0; isa < tables.size(); ++isa) {
          Matrix sin(DType::kFloat32, 1, width), cos(DType::kFloat32, 1, width);
          Matrix output(dtype, 1, width + 3);
          EXPECT_FALSE(tables[isa].table->sin_cos(angles.data<float>(), sin.data<float>(),
                                                  cos.data<float>(), width));
          tables[isa].table->rotate[te::cpu::high_precision_index(dtype)][interleaved](
              {.input = input.data<void>(),
               .output = output.data<void>(),
               .cos = cos.data<float>(),
               .sin = sin.data<float>(),
               .width = width,
               .channels = width + 3,
               .groups = 1,
               .heads = 1,
               .input_group_stride = 0,
               .input_head_stride = 0,
               .output_group_stride = 0,
               .output_head_stride = 0});
          if (isa == 0) {
            std::memcpy(first.data<void>(), output.data<void>(), output.size_bytes());
          }
          EXPECT_TRUE(te::testing::same_bytes(output, first)) << tables[isa].isa;
        }
      }
    }
  }
}

TEST(RopeKernels, ReportsAnglesBeyondTheVectorCode) {
  for (const auto& [isa, table] : TE_TABLES_OF(te::cpu::RopeKernels, rope_kernels)) {
    for (const int64_t at : {0, 7, 20}) {
      std::vector<float> angles(21, te::cpu::kRopeVectorLimit), sin(21), cos(21);
      EXPECT_FALSE(table->sin_cos(angles.data(), sin.data(), cos.data(), 21)) << isa;
      angles[at] = -std::nextafter(te::cpu::kRopeVectorLimit, HUGE_VALF);
      EXPECT_TRUE(table->sin_cos(angles.data(), sin.data(), cos.data(), 21)) << isa << at;
    }
  }
}

TEST(Rope, EmptyIsOrdinary) {
  for (const Shape& shape : te::testing::kEmptyRopeShapes) {
    const RopeArgs args = te::testing::empty_rope_args(shape);
    te::rope(args, {});
    te::reference::rope(args, {});
  }
}

template <typename Error = te::ValueError>
void expect_refusal(void (*change)(RopeArgs& args), std::initializer_list<const char*> words) {
  Problem problem({4, 1, 1, 2, 8, 4}, DType::kFloat32, Layout::kSequenceFirst, Place::kPlain);
  RopeArgs args = problem.args();
  change(args);
  expect_error<Error>([&] { te::rope(args, {}); }, words);
}

TEST(Rope, RefusesWhatDoesNotFit) {
  static const int32_t narrow[] = {0, 4};
  static const int64_t wide[] = {0, 4};
  expect_refusal([](RopeArgs& args) { args.part_count = 0; }, {"rope: part_count is 0"});
  expect_refusal([](RopeArgs& args) { args.part_count = 4; }, {"rope: part_count is 4"});
  expect_refusal<te::TypeError>([](RopeArgs& args) { args.dtype = DType::kInt32; },
                                {"rope: dtype is int32"});
  expect_refusal([](RopeArgs& args) { args.length = -1; }, {"rope: length is -1"});
  expect_refusal([](RopeArgs& args) { args.batch = -2; }, {"batch -2"});
  expect_refusal([](RopeArgs& args) { args.placement.cp_size = 0; }, {"cp_size 0"});
  expect_refusal([](RopeArgs& args) { args.placement.cp_rank = 1; }, {"cp_rank is 1"});
  expect_refusal(
      [](RopeArgs& args) {
        args.placement.cp_size = 2;
        args.length = 3;
      },
      {"length is 3 with cp_size 2"});
  expect_refusal(
      [](RopeArgs& args) { args.placement.start_positions = {.narrow = narrow, .wide = wide}; },
      {"indices have 32 and 64 bits"});
  expect_refusal(
      [](RopeArgs& args) {
        args.placement.cu_seqlens = {.narrow = narrow};
        args.placement.sequences = 0;
      },
      {"batch is 1 with packed sequences, of which there are 0"});
  expect_refusal(
      [](RopeArgs& args) {
        args.placement.cu_seqlens = {.narrow = narrow};
        args.placement.sequences = 1;
        args.batch = 2;
      },
      {"batch is 2 with packed sequences"});
  expect_refusal([](RopeArgs& args) { args.parts[0].heads = -1; }, {"part 0 has 1 groups of -1"});
  expect_refusal([](RopeArgs& args) { args.parts[0].heads = int64_t{1} << 31; },
                 {"at most 2^31 - 1 heads"});
  expect_refusal([](RopeArgs& args) { args.parts[0].table.width = 3; }, {"has width 3"});
  expect_refusal([](RopeArgs& args) { args.parts[0].table.width = 10; },
                 {"has width 10 for 8 channels"});
  expect_refusal([](RopeArgs& args) { args.parts[0].input.data = nullptr; }, {"has no data"});
  expect_refusal([](RopeArgs& args) { args.parts[0].table.angles = nullptr; }, {"and no data"});
  expect_refusal([](RopeArgs& args) { args.parts[0].table.rows = 3; },
                 {"table of part 0 has 3 rows; 4 times cp_size 1"});
}

}  // namespace
