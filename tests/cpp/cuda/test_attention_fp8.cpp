// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FP8 attention on CUDA with the stand-in for cuDNN (fake_cudnn.h) against the formulas of
// attention.h in FP64 (helpers/attention_fp8_problem.h); what is refused; the cache of plans.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>

#include "cuda/architecture.h"
#include "cuda/attention/rules.h"
#include "cuda/device_mirror.h"
#include "cuda/fake_cudnn.h"
#include "helpers/attention_fp8_problem.h"
#include "helpers/errors.h"

namespace {

namespace te = transformer_engine;
namespace cuda = transformer_engine::cuda;
using te::AttentionFp8Types;
using te::AttentionProblem;
using te::DType;
using te::HeadsView;
using te::testing::Architecture;
using te::testing::AttentionFormat;
using te::testing::AttentionFp8Case;
using te::testing::AttentionFp8Reference;
using te::testing::AttentionFp8Tensors;
using te::testing::DeviceMirror;
using te::testing::ExactHeads;
using te::testing::FakeCudnn;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::NearestCode;
using te::testing::Scale;
using te::testing::TypedHeads;

AttentionProblem problem(int64_t batch, int64_t heads, int64_t groups, int64_t queries,
                         int64_t keys, int64_t size_qk = 128, int64_t size_v = 128) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.heads = heads;
  problem.groups = groups;
  problem.queries = queries;
  problem.keys = keys;
  problem.size_qk = size_qk;
  problem.size_v = size_v;
  problem.dtype = DType::kFloat8E4M3;
  problem.scale = 0.09F;
  problem.has_statistics = true;
  return problem;
}
AttentionProblem causal(AttentionProblem problem, bool is_bottom_right = false) {
  problem.right = 0;
  problem.is_bottom_right = is_bottom_right;
  return problem;
}
AttentionProblem forward_alone(AttentionProblem problem) {
  problem.has_statistics = false;
  return problem;
}

// Of sm_90 and later.
std::vector<AttentionFp8Case> all_cases() {
  const AttentionProblem self = problem(2, 2, 2, 7, 7);
  const AttentionProblem cross = problem(1, 4, 2, 5, 9);
  const AttentionProblem padded = problem(0, 2, 1, 8, 8);
  const std::vector<int32_t> few = {3, 8, 1};
  const std::vector<int32_t> more = {6, 4, 8};
  const std::vector<int32_t> with_empty = {4, 0, 6};
  using enum AttentionFormat;
  return {
      {.name = "full", .problem = self},
      {.name = "full, sbhd", .problem = self, .format = kSbhd},
      {.name = "cross, grouped", .problem = cross, .format = kSbhd},
      {.name = "slices", .problem = problem(2, 4, 1, 6, 6), .is_interleaved = true},
      {.name = "causal", .problem = causal(self)},
      {.name = "causal, more keys", .problem = causal(cross)},
      {.name = "causal, more queries", .problem = causal(problem(1, 2, 1, 9, 5))},
      {.name = "causal bottom right, square", .problem = causal(self, true)},
      {.name = "padding", .problem = padded, .lengths_q = few, .lengths_kv = more},
      {.name = "padding, sbhd",
       .problem = padded,
       .format = kSbhd,
       .lengths_q = more,
       .lengths_kv = few},
      {.name = "padding causal", .problem = causal(padded), .lengths_q = few, .lengths_kv = few},
      {.name = "padding, sequences without keys",
       .problem = padded,
       .lengths_q = few,
       .lengths_kv = with_empty},
      {.name = "padding causal, empty sequences",
       .problem = causal(padded),
       .lengths_q = with_empty,
       .lengths_kv = more},
      {.name = "E4M3 gradients",
       .problem = self,
       .types = {.grad_o = DType::kFloat8E4M3, .grads = DType::kFloat8E4M3}},
      {.name = "probabilities and gradients of them that saturate",
       .problem = causal(self),
       .types = {.grad_o = DType::kFloat8E4M3},
       .scale_s = 1234.5F,
       .scale_dp = 5432.1F},
      {.name = "one query", .problem = problem(2, 2, 2, 1, 6)},
  };
}

// ---- the ops with their arguments copied to the device, and the results back

class OnDevice {
 public:
  explicit OnDevice(AttentionFp8Tensors& tensors) : tensors_(tensors) {}

  void forward() {
    te::AttentionFp8ForwardArgs args = tensors_.forward_args(scales());
    set_inputs(args.inputs);
    args.o = view(tensors_.o);
    args.statistics = mirror_.pointer(args.statistics, tensors_.statistics.size());
    args.amax = mirror_.pointer(tensors_.amax.data(), tensors_.amax.size());
    te::attention_fp8_forward(args, kOnDevice);
    mirror_.download();
  }
  void backward() {
    te::AttentionFp8BackwardArgs args = tensors_.backward_args(scales());
    set_inputs(args.inputs);
    args.o = view(tensors_.saved_o);
    args.grad_o = view(tensors_.grad_o);
    args.statistics = mirror_.pointer(tensors_.statistics.data(), tensors_.statistics.size());
    args.grad_q = view(tensors_.grad_q);
    args.grad_k = view(tensors_.grad_k);
    args.grad_v = view(tensors_.grad_v);
    args.amax = mirror_.pointer(tensors_.amax.data(), tensors_.amax.size());
    te::attention_fp8_backward(args, kOnDevice);
    mirror_.download();
  }

 private:
  // Side by side, so that most lie at no multiple of 16 bytes.
  const float* scales() { return mirror_.pointer(tensors_.scales.data(), te::testing::kScales); }
  HeadsView view(TypedHeads& tensor) {
    HeadsView view = tensor.view();
    view.data = mirror_.pointer(tensor.matrix().data<uint8_t>(), tensor.matrix().size_bytes());
    return view;
  }
  void set_inputs(te::AttentionInputs& inputs) {
    inputs.q = view(tensors_.q);
    inputs.k = view(tensors_.k);
    inputs.v = view(tensors_.v);
    const auto count = static_cast<size_t>(tensors_.problem().batch + 1);
    inputs.sequences.cu_q = mirror_.pointer(inputs.sequences.cu_q, count);
    inputs.sequences.cu_kv = mirror_.pointer(inputs.sequences.cu_kv, count);
  }

  AttentionFp8Tensors& tensors_;
  DeviceMirror mirror_;
};

// ---- against the reference

void expect_amax(float got, double expected, double bound) {
  EXPECT_NEAR(got, expected, expected * te::testing::kFloatRoundoff + bound);
}

void expect_stored(TypedHeads& got, ExactHeads& exact, double scale, float amax, double order,
                   const char* what) {
  SCOPED_TRACE(what);
  EXPECT_TRUE(te::testing::is_stored(got, exact, scale, order));
  expect_amax(amax, exact.amax(), exact.largest_term * order);
}

// Of queries that see a key: elsewhere cuDNN leaves the statistics undefined.
void expect_statistics(AttentionFp8Tensors& tensors, AttentionFp8Reference& exact, double order) {
  for (size_t i = 0; i < tensors.statistics.size(); ++i) {
    const double expected = exact.statistics.data[i];
    if (expected != 0.0) {
      EXPECT_NEAR(tensors.statistics[i], expected,
                  std::abs(expected) * te::testing::kFloatRoundoff + exact.largest_score * order)
          << "statistics " << i;
    } else {
      tensors.statistics[i] = std::numeric_limits<float>::quiet_NaN();  // not to be read
    }
  }
}

// O as the recipe saves it, for tokens of sequences.
void save_output(AttentionFp8Tensors& tensors, AttentionFp8Reference& exact) {
  const AttentionProblem& problem = tensors.problem();
  TypedHeads& saved = tensors.saved_o;
  const NearestCode nearest(te::testing::fp8_description(saved.dtype()));
  const double scale = te::is_fp8(saved.dtype()) ? 1 / tensors.scale(Scale::kDescaleO) : 1.0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.heads; ++h) {
      for (int64_t i = 0; i < tensors.length(b, true); ++i) {
        for (int64_t d = 0; d < problem.size_v; ++d) {
          saved.set(b, h, i, d, exact.o.at(b, h, i, d) * scale, nearest);
        }
      }
    }
  }
}

void expect_matches_reference(const AttentionFp8Case& spec) {
  SCOPED_TRACE(spec.name);
  AttentionFp8Tensors tensors(spec);
  AttentionFp8Reference exact(tensors);
  const double order = te::testing::order_roundoff(tensors.problem());
  exact.forward();
  OnDevice(tensors).forward();
  const bool has_scale = te::is_fp8(spec.types.o);
  expect_stored(tensors.o, exact.o, has_scale ? tensors.scale(Scale::kScaleO) : 1.0,
                tensors.amax[1], order, "o");
  expect_amax(tensors.amax[0], exact.amax_s, exact.largest_score * order);
  if (!spec.problem.has_statistics) {
    return;
  }
  expect_statistics(tensors, exact, order);
  save_output(tensors, exact);
  exact.backward();
  OnDevice(tensors).backward();
  const bool has_scales = te::is_fp8(spec.types.grads);
  const auto scale = [&](Scale which) { return has_scales ? tensors.scale(which) : 1.0; };
  expect_stored(tensors.grad_q, exact.grad_q, scale(Scale::kScaleGradQ), tensors.amax[0], order,
                "grad_q");
  expect_stored(tensors.grad_k, exact.grad_k, scale(Scale::kScaleGradK), tensors.amax[1], order,
                "grad_k");
  expect_stored(tensors.grad_v, exact.grad_v, scale(Scale::kScaleGradV), tensors.amax[2], order,
                "grad_v");
  expect_amax(tensors.amax[3], exact.amax_dp, exact.largest_dp * order);
}

// Of cuDNN: before and after the last that a rule names, and the oldest, which hides scores by the
// lowest finite number.
constexpr size_t kVersions[] = {90700, 91300, 92100, 92801};

TEST(CudaAttentionFp8, EveryProblemMatchesTheFormulas) {
  const Architecture architecture("90");
  for (const size_t version : kVersions) {
    if (kIsSlowDevice && version != kVersions[1]) {
      continue;
    }
    SCOPED_TRACE(version);
    const FakeCudnn library(version);
    for (const AttentionFp8Case& spec : all_cases()) {
      expect_matches_reference(spec);
    }
  }
}

TEST(CudaAttentionFp8, TakesE5M2Inputs) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Case spec{.name = "E5M2",
                        .problem = causal(problem(1, 2, 1, 5, 5)),
                        .types = {.o = DType::kFloat8E5M2, .saved_o = DType::kFloat8E5M2}};
  spec.problem.dtype = DType::kFloat8E5M2;
  expect_matches_reference(spec);
}

TEST(CudaAttentionFp8, TakesHeadSizesOfForwardsAloneOnSm90) {
  const Architecture architecture("90");
  const FakeCudnn library;
  for (const int64_t size : {16, 64, 256}) {
    expect_matches_reference(
        {.name = "forward", .problem = forward_alone(causal(problem(1, 2, 1, 6, 9, size, size)))});
  }
}

TEST(CudaAttentionFp8, TakesSmallAndUnequalHeadSizesOnSm100) {
  const Architecture architecture("100");
  const FakeCudnn library(92100);
  expect_matches_reference({.name = "unequal", .problem = problem(2, 4, 2, 5, 7, 64, 32)});
  expect_matches_reference({.name = "latent", .problem = causal(problem(1, 2, 2, 4, 4, 192, 128))});
}

TEST(CudaAttentionFp8, WritesAndReadsSixteenBitsOnSm100) {
  const Architecture architecture("100");
  const FakeCudnn library(91400);
  for (const DType wide : {DType::kBFloat16, DType::kFloat16}) {
    const AttentionFp8Types all{.o = wide, .saved_o = wide, .grads = wide};
    const AttentionFp8Types output{.o = wide};
    const AttentionFp8Types gradients{.grads = wide};
    const AttentionProblem padded = causal(problem(0, 2, 1, 6, 6, 32, 32));
    for (const AttentionFp8Types& types : {all, output, gradients}) {
      expect_matches_reference({.name = te::dtype_name(wide),
                                .problem = padded,
                                .types = types,
                                .lengths_q = {4, 6},
                                .lengths_kv = {4, 6}});
    }
  }
}

TEST(CudaAttentionFp8, IsDeterministicWhereAskedOnSm100) {
  const Architecture architecture("100");
  const FakeCudnn library(91900);
  AttentionFp8Case spec{.name = "deterministic", .problem = causal(problem(1, 4, 2, 5, 5, 32, 32))};
  expect_matches_reference(spec);
  EXPECT_EQ(FakeCudnn::calls().engine, 0);
  spec.problem.is_deterministic = true;
  expect_matches_reference(spec);
  EXPECT_NE(FakeCudnn::calls().engine, 0);  // cudnn-frontend names one
}

TEST(CudaAttentionFp8, AlignsTheDiagonalAtTheBottomRightInForwardsAlone) {
  const Architecture architecture("100");
  const FakeCudnn library(92100);
  const AttentionProblem cross = forward_alone(causal(problem(1, 2, 1, 64, 128, 16, 16), true));
  expect_matches_reference({.name = "bottom right", .problem = cross});
  expect_matches_reference({.name = "bottom right, padding",
                            .problem = cross,
                            .lengths_q = {10, 64},
                            .lengths_kv = {70, 128}});
}

TEST(CudaAttentionFp8, SetsMagnitudesOfNothingToZero) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Tensors tensors(
      {.name = "no keys", .problem = problem(0, 2, 1, 4, 4), .lengths_q = {3}, .lengths_kv = {0}});
  OnDevice(tensors).forward();
  EXPECT_EQ(tensors.amax[1], 0.0F);
  AttentionFp8Reference exact(tensors);
  save_output(tensors, exact);
  OnDevice(tensors).backward();
  EXPECT_EQ(tensors.amax, (std::array<float, 4>{0.0F, 0.0F, 0.0F, 0.0F}));
}

// ---- plans

TEST(CudaAttentionFp8, MakesAPlanOnce) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Case spec{.name = "once", .problem = problem(0, 2, 1, 3, 5)};
  spec.lengths_q = {3, 2};
  spec.lengths_kv = {4, 5};
  spec.problem.scale = 0.12345F;  // no other test's
  AttentionFp8Tensors tensors(spec);
  AttentionFp8Reference exact(tensors);
  exact.forward();
  save_output(tensors, exact);
  OnDevice device(tensors);
  device.forward();
  device.backward();
  const auto first = FakeCudnn::calls();
  const size_t built = cuda::attention_plans_built();
  EXPECT_EQ(first.plans, 2);
  for (int i = 0; i < 3; ++i) {
    device.forward();
    device.backward();
  }
  EXPECT_EQ(FakeCudnn::calls().plans, first.plans);
  EXPECT_EQ(FakeCudnn::calls().heuristics, first.heuristics);
  EXPECT_EQ(FakeCudnn::calls().executions, first.executions + 6);
  EXPECT_EQ(cuda::attention_plans_built(), built);
}

TEST(CudaAttentionFp8, MakesAPlanForEachSetOfTypes) {
  const Architecture architecture("100");
  const FakeCudnn library(91400);
  AttentionFp8Case spec{.name = "types", .problem = problem(1, 1, 1, 2, 3, 16, 16)};
  spec.problem.scale = 0.23456F;
  const DType wide = DType::kBFloat16;
  int plans = 0;
  const AttentionFp8Types sets[] = {{},
                                    {.o = wide},
                                    {.saved_o = wide},
                                    {.grad_o = DType::kFloat8E4M3},
                                    {.grads = DType::kFloat8E4M3},
                                    {.grads = wide}};
  for (const AttentionFp8Types& types : sets) {
    spec.types = types;
    expect_matches_reference(spec);
    plans += types.o == wide || plans == 0 ? 1 : 0;                     // forwards
    plans += types.o != wide || FakeCudnn::calls().plans == 0 ? 1 : 0;  // backwards
    EXPECT_EQ(FakeCudnn::calls().plans, plans);
  }
}

TEST(CudaAttentionFp8, PreparesTheBackwardBeforeTheForward) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Case spec{.name = "prepared", .problem = problem(1, 1, 1, 2, 3)};
  spec.problem.scale = 0.34567F;
  AttentionFp8Tensors tensors(spec);
  const auto args = tensors.backward_args(tensors.scales.data());
  EXPECT_EQ(te::attention_fp8_backward_refusal(args, kOnDevice), nullptr);
  EXPECT_EQ(FakeCudnn::calls().plans, 1);
  AttentionFp8Reference exact(tensors);
  exact.forward();
  save_output(tensors, exact);
  OnDevice(tensors).forward();
  OnDevice(tensors).backward();
  EXPECT_EQ(FakeCudnn::calls().plans, 2);
}

TEST(CudaAttentionFp8, WritesNothingWhereThereIsNoPlan) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Case spec{.name = "refused", .problem = problem(1, 1, 1, 4, 4)};
  spec.problem.scale = 0.45678F;
  AttentionFp8Tensors tensors(spec);
  FakeCudnn::calls().has_no_engine = true;
  te::testing::expect_error<te::NotImplementedError>([&] { OnDevice(tensors).forward(); },
                                                     {"attention_fp8_forward: cuDNN has no plan"});
  te::testing::expect_error<te::NotImplementedError>([&] { OnDevice(tensors).backward(); },
                                                     {"attention_fp8_backward: cuDNN has no plan"});
  const auto args = tensors.backward_args(tensors.scales.data());
  EXPECT_NE(te::attention_fp8_backward_refusal(args, kOnDevice), nullptr);
  EXPECT_EQ(tensors.amax[0], 1e30F);
}

TEST(CudaAttentionFp8, RefusesWhatIsNotAligned) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionFp8Tensors tensors({.name = "", .problem = problem(1, 1, 1, 4, 4)});
  auto forward = tensors.forward_args(tensors.scales.data());
  forward.inputs.k.token_stride += 8;
  te::testing::expect_error<te::NotImplementedError>(
      [&] { te::attention_fp8_forward(forward, kOnDevice); }, {"multiples of 16 bytes"});
  auto backward = tensors.backward_args(tensors.scales.data());
  backward.grad_v.head_stride += 8;
  te::testing::expect_error<te::NotImplementedError>(
      [&] { te::attention_fp8_backward(backward, kOnDevice); }, {"multiples of 16 bytes"});
}

// ---- rules

struct Platform {
  int capability = 90;
  size_t version = 92801;
};
std::string reason(const AttentionProblem& problem, Platform platform = {},
                   const AttentionFp8Types& types = {}) {
  const char* const text = cuda::reason_against_fp8(
      problem, types, {.compute_capability = platform.capability, .version = platform.version});
  return text == nullptr ? "" : text;
}
template <typename Value>
AttentionProblem with(AttentionProblem problem, Value AttentionProblem::* member, Value value) {
  problem.*member = value;
  return problem;
}

TEST(CudaAttentionFp8Rules, NameDevicesAndFeaturesThatAreRefused) {
  using P = AttentionProblem;
  const P self = problem(2, 2, 2, 16, 16);
  EXPECT_EQ(reason(self), "");
  EXPECT_EQ(reason(self, {100}), "");
  EXPECT_EQ(reason(self, {110}), "");
  EXPECT_EQ(reason(self, {89}), "FP8 attention needs sm_90 to sm_110, this is sm_89");
  EXPECT_EQ(reason(self, {120}), "FP8 attention needs sm_90 to sm_110, this is sm_120");
  EXPECT_EQ(reason(with(self, &P::is_packed, true)), "FP8 attention has no packed sequences (thd)");
  EXPECT_EQ(reason(with(self, &P::has_bias, true)), "FP8 attention has no bias");
  EXPECT_EQ(reason(with(self, &P::dropout, 0.1F)), "FP8 attention has no dropout");
  EXPECT_EQ(reason(with(self, &P::queries, int64_t{0})), "a tensor is empty");
  EXPECT_EQ(reason(problem(2, 2, 2, 1, 1)), "its backward does not take one query with one key");
  EXPECT_EQ(reason(forward_alone(problem(2, 2, 2, 1, 1))), "");
}

TEST(CudaAttentionFp8Rules, NameHeadSizesThatAreRefused) {
  const auto sized = [](int64_t qk, int64_t v) { return problem(1, 2, 2, 16, 16, qk, v); };
  EXPECT_EQ(reason(forward_alone(sized(72, 72))),
            "head sizes are 72 and 72; FP8 attention takes multiples of 16");
  EXPECT_EQ(reason(sized(64, 64)),
            "head sizes are 64 and 64; FP8 attention takes 128 alone on sm_90 where a backward "
            "follows");
  EXPECT_EQ(reason(forward_alone(sized(64, 64))), "");
  EXPECT_EQ(reason(forward_alone(sized(256, 256))), "");
  const char kForward[] = "; FP8 attention takes equal ones up to 256 on sm_90";
  EXPECT_EQ(reason(forward_alone(sized(272, 272))),
            std::string("head sizes are 272 and 272") + kForward);
  EXPECT_EQ(reason(forward_alone(sized(192, 128))),
            std::string("head sizes are 192 and 128") + kForward);
  EXPECT_EQ(reason(sized(16, 112), {100}), "");
  EXPECT_EQ(reason(sized(192, 128), {100, 92100}), "");
  const char kLatent[] =
      "; FP8 attention takes up to 128 on this device, or 192 and 128 from cuDNN 9.21 on";
  EXPECT_EQ(reason(sized(192, 128), {100, 92001}),
            std::string("head sizes are 192 and 128") + kLatent);
  EXPECT_EQ(reason(sized(144, 128), {103}), std::string("head sizes are 144 and 128") + kLatent);
}

TEST(CudaAttentionFp8Rules, NameMasksThatAreRefused) {
  using P = AttentionProblem;
  const char kWindow[] = "FP8 attention has no sliding window";
  const P wide = problem(2, 2, 2, 64, 128);
  EXPECT_EQ(reason(with(wide, &P::left, int64_t{3})), kWindow);
  EXPECT_EQ(reason(with(wide, &P::right, int64_t{1})), kWindow);
  EXPECT_EQ(reason(causal(wide)), "");
  EXPECT_EQ(reason(causal(problem(2, 2, 2, 16, 16), true)), "");  // the same as the top left
  EXPECT_EQ(reason(causal(wide, true), {100}),
            "cudnn-frontend leaves a bottom-right diagonal out of its FP8 backward");
  EXPECT_EQ(reason(with(causal(problem(2, 2, 2, 64, 64), true), &P::has_lengths, true), {100}),
            "cudnn-frontend leaves a bottom-right diagonal out of its FP8 backward");
  const char kNew[] = "FP8 attention has a bottom-right diagonal from sm_100 and cuDNN 9.21 on";
  const P forward = forward_alone(causal(wide, true));
  EXPECT_EQ(reason(forward, {90}), kNew);
  EXPECT_EQ(reason(forward, {100, 92001}), kNew);
  EXPECT_EQ(reason(forward, {100, 92100}), "");
  EXPECT_EQ(reason(with(forward, &P::keys, int64_t{100}), {100}),
            "a bottom-right diagonal with 64 queries and 100 keys; FP8 attention takes multiples "
            "of 64");
  EXPECT_EQ(reason(with(forward, &P::queries, int64_t{192}), {100}),
            "a bottom-right diagonal with 192 queries and 128 keys; it takes no more queries than "
            "keys");
}

TEST(CudaAttentionFp8Rules, NameTypesAndDeterminismThatAreRefused) {
  const AttentionProblem self = problem(2, 2, 2, 16, 16);
  const DType wide = DType::kBFloat16;
  const char kOutput[] =
      "O of FP8 attention is bfloat16 from sm_100 and cuDNN 9.13 on, before "
      "that FP8";
  EXPECT_EQ(reason(self, {90}, {.o = wide}), kOutput);
  EXPECT_EQ(reason(self, {100, 91200}, {.o = wide}), kOutput);
  EXPECT_EQ(reason(self, {100, 91300}, {.o = wide}), "");
  const char kGradients[] =
      "gradients of FP8 attention are bfloat16 from sm_100 and cuDNN 9.13 "
      "on, before that FP8";
  EXPECT_EQ(reason(self, {90}, {.grads = wide}), kGradients);
  EXPECT_EQ(reason(self, {100, 91200}, {.grads = wide}), kGradients);
  EXPECT_EQ(reason(self, {100, 91300}, {.grads = wide}), "");
  EXPECT_EQ(reason(forward_alone(self), {90}, {.grads = wide}), "");
  const char kSaved[] =
      "the backward of FP8 attention takes O in bfloat16 from sm_100 and cuDNN "
      "9.14 on, before that FP8";
  EXPECT_EQ(reason(self, {90}, {.saved_o = wide}), kSaved);
  EXPECT_EQ(reason(self, {100, 91300}, {.saved_o = wide}), kSaved);
  EXPECT_EQ(reason(self, {100, 91400}, {.saved_o = wide}), "");
  const AttentionProblem fixed = with(self, &AttentionProblem::is_deterministic, true);
  const char kFixed[] =
      "the backward of FP8 attention is deterministic on sm_100 to sm_103 with "
      "cuDNN 9.19 or later alone";
  EXPECT_EQ(reason(fixed, {90}), kFixed);
  EXPECT_EQ(reason(fixed, {110}), kFixed);
  EXPECT_EQ(reason(fixed, {100, 91801}), kFixed);
  EXPECT_EQ(reason(fixed, {100, 91900}), "");
  EXPECT_EQ(reason(forward_alone(fixed), {90}), "");
}

TEST(CudaAttentionFp8, RefusesByItsRulesAndVersions) {
  const Architecture architecture("90");
  AttentionFp8Case spec{.name = "", .problem = problem(1, 1, 1, 4, 4)};
  spec.problem.dropout = 0.5F;
  {
    const FakeCudnn library;
    EXPECT_EQ(te::attention_fp8_refusal(problem(1, 1, 1, 4, 4), {}, kOnDevice), nullptr);
    EXPECT_STREQ(te::attention_fp8_refusal(spec.problem, {}, kOnDevice),
                 "FP8 attention has no dropout");
    AttentionFp8Tensors tensors(spec);
    auto args = tensors.forward_args(tensors.scales.data());
    const int64_t random = 0;
    args.inputs.seed = args.inputs.offset = &random;
    te::testing::expect_error<te::NotImplementedError>(
        [&] { te::attention_fp8_forward(args, kOnDevice); }, {"FP8 attention has no dropout"});
  }
  const FakeCudnn library(91000);
  EXPECT_NE(te::attention_fp8_refusal(problem(1, 1, 1, 4, 4), {}, kOnDevice), nullptr);
}

}  // namespace
