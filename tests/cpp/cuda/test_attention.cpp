// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Attention on CUDA with a stand-in for cuDNN (fake_cudnn.h), which runs the graphs that
// cudnn-frontend makes, against the reference; the cache of plans; the kernels around them.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>

#include "cuda/architecture.h"
#include "cuda/attention/rules.h"
#include "cuda/attention/sequences.h"
#include "cuda/device_mirror.h"
#include "cuda/fake_cudnn.h"
#include "cuda/runtime.h"
#include "helpers/attention_problem.h"
#include "helpers/errors.h"
#include "reference/attention.h"

namespace {

namespace te = transformer_engine;
namespace cuda = transformer_engine::cuda;
using te::AttentionProblem;
using te::DType;
using te::HeadsView;
using te::testing::Architecture;
using te::testing::AttentionCase;
using te::testing::AttentionFormat;
using te::testing::AttentionTensors;
using te::testing::DeviceMirror;
using te::testing::FakeCudnn;
using te::testing::HeadsTensor;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;

AttentionProblem problem(int64_t batch, int64_t heads, int64_t groups, int64_t queries,
                         int64_t keys) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.heads = heads;
  problem.groups = groups;
  problem.queries = queries;
  problem.keys = keys;
  problem.size_qk = 16;
  problem.size_v = 8;
  problem.scale = 0.31F;
  problem.has_statistics = true;
  return problem;
}
AttentionProblem banded(AttentionProblem problem, int64_t left, int64_t right, bool bottom_right) {
  problem.left = left;
  problem.right = right;
  problem.is_bottom_right = bottom_right;
  return problem;
}
AttentionProblem biased(AttentionProblem problem, int64_t batch, int64_t heads) {
  problem.has_bias = true;
  problem.bias_batch = batch;
  problem.bias_heads = heads;
  return problem;
}
AttentionProblem dropped(AttentionProblem problem, float dropout) {
  problem.dropout = dropout;
  return problem;
}

std::vector<AttentionCase> all_cases() {
  const AttentionProblem self = problem(2, 2, 2, 9, 9);
  const AttentionProblem cross = problem(2, 4, 2, 5, 11);
  const AttentionProblem grouped = problem(1, 6, 2, 6, 8);
  const AttentionProblem whole = problem(2, 2, 2, 5, 8);  // keys that a bias may have
  using enum AttentionFormat;
  const std::vector<int32_t> few = {3, 9, 1};
  const std::vector<int32_t> more = {7, 4, 9};
  const std::vector<int32_t> with_empty = {4, 0, 6};
  return {
      {.name = "full", .problem = self},
      {.name = "full, sbhd", .problem = self, .format = kSbhd},
      {.name = "cross", .problem = cross, .format = kSbhd},
      {.name = "slices", .problem = grouped, .is_interleaved = true},
      {.name = "causal", .problem = banded(self, -1, 0, false)},
      {.name = "causal, more queries", .problem = banded(problem(1, 2, 1, 10, 6), -1, 0, false)},
      {.name = "causal, more keys", .problem = banded(cross, -1, 0, false)},
      {.name = "causal bottom right", .problem = banded(cross, -1, 0, true)},
      {.name = "causal bottom right, square", .problem = banded(self, -1, 0, true)},
      {.name = "causal window", .problem = banded(self, 2, 0, false)},
      {.name = "causal window bottom right", .problem = banded(cross, 3, 0, true)},
      {.name = "diagonal alone", .problem = banded(self, 0, 0, false)},
      {.name = "window", .problem = banded(self, 2, 1, false)},
      {.name = "window bottom right", .problem = banded(cross, 2, 1, true)},
      {.name = "left side alone", .problem = banded(self, 3, -1, false)},
      {.name = "padding", .problem = problem(3, 2, 1, 9, 9), .lengths_q = few, .lengths_kv = more},
      {.name = "padding causal",
       .problem = banded(problem(3, 2, 2, 9, 9), -1, 0, false),
       .format = kSbhd,
       .lengths_q = few,
       .lengths_kv = few},
      {.name = "padding causal bottom right",
       .problem = banded(problem(3, 2, 2, 9, 9), -1, 0, true),
       .lengths_q = few,
       .lengths_kv = more},
      {.name = "padding window",
       .problem = banded(problem(3, 2, 2, 9, 9), 1, 2, true),
       .lengths_q = more,
       .lengths_kv = few},
      {.name = "padding, an empty sequence",
       .problem = problem(3, 2, 1, 9, 9),
       .lengths_q = few,
       .lengths_kv = with_empty},
      {.name = "packed",
       .problem = problem(3, 2, 1, 9, 9),
       .format = kThd,
       .lengths_q = few,
       .lengths_kv = more},
      {.name = "packed causal",
       .problem = banded(problem(3, 4, 2, 9, 9), -1, 0, false),
       .format = kThd,
       .lengths_q = few,
       .lengths_kv = few,
       .is_interleaved = true},
      {.name = "packed causal bottom right, gaps",
       .problem = banded(problem(3, 2, 2, 9, 9), -1, 0, true),
       .format = kThd,
       .lengths_q = few,
       .lengths_kv = more,
       .gap = 3},
      {.name = "packed window, gaps",
       .problem = banded(problem(3, 2, 1, 9, 9), 2, 0, false),
       .format = kThd,
       .lengths_q = more,
       .lengths_kv = more,
       .gap = 2},
      {.name = "packed, empty sequences",
       .problem = problem(3, 2, 1, 9, 9),
       .format = kThd,
       .lengths_q = with_empty,
       .lengths_kv = more},
      {.name = "bias of each", .problem = biased(whole, 0, 0), .has_grad_bias = true},
      {.name = "bias of heads",
       .problem = biased(problem(2, 4, 2, 5, 16), 1, 0),
       .has_grad_bias = true},
      {.name = "bias of sequences", .problem = biased(whole, 0, 1), .has_grad_bias = true},
      {.name = "one bias, causal",
       .problem = biased(banded(whole, -1, 0, false), 1, 1),
       .has_grad_bias = true},
      {.name = "bias without gradient", .problem = biased(grouped, 1, 0)},
      {.name = "dropout", .problem = dropped(self, 0.3F)},
      {.name = "dropout causal grouped", .problem = dropped(banded(grouped, -1, 0, false), 0.6F)},
      {.name = "dropout packed",
       .problem = dropped(problem(3, 2, 1, 9, 9), 0.25F),
       .format = kThd,
       .lengths_q = few,
       .lengths_kv = more},
  };
}

// ---- the ops with their arguments copied to the device, and the results back

class OnDevice {
 public:
  explicit OnDevice(AttentionTensors& tensors) : tensors_(tensors) {}

  void forward() {
    te::AttentionForwardArgs args = tensors_.forward_args();
    args.inputs = inputs(args.inputs);
    args.o = view(tensors_.o);
    args.statistics = pointer(args.statistics);
    te::attention_forward(args, kOnDevice);
    mirror_.download();
  }
  void backward() {
    te::AttentionBackwardArgs args = tensors_.backward_args();
    args.inputs = inputs(args.inputs);
    args.o = view(tensors_.o);
    args.grad_o = view(tensors_.grad_o);
    args.statistics = pointer(const_cast<float*>(args.statistics));
    args.grad_q = view(tensors_.grad_q);
    args.grad_k = view(tensors_.grad_k);
    args.grad_v = view(tensors_.grad_v);
    if (args.grad_bias.data != nullptr) {
      args.grad_bias.data = mirror_.view(tensors_.grad_bias).data;
    }
    te::attention_backward(args, kOnDevice);
    mirror_.download();
  }

 private:
  HeadsView view(HeadsTensor& tensor) {
    HeadsView view = tensor.view();
    view.data = mirror_.view(tensor.matrix()).data;
    return view;
  }
  float* pointer(float* statistics) {
    return mirror_.pointer(statistics, static_cast<size_t>(tensors_.statistics.numel()));
  }
  const int32_t* copy(const int32_t* numbers) {
    return mirror_.pointer(numbers, static_cast<size_t>(tensors_.problem().batch + 1));
  }
  te::AttentionInputs inputs(te::AttentionInputs host) {
    host.q = view(tensors_.q);
    host.k = view(tensors_.k);
    host.v = view(tensors_.v);
    if (host.bias.data != nullptr) {
      host.bias.data = mirror_.view(tensors_.bias).data;
    }
    host.sequences = {copy(host.sequences.cu_q), copy(host.sequences.cu_kv),
                      copy(host.sequences.first_q), copy(host.sequences.first_kv)};
    host.seed = mirror_.pointer(host.seed, 1);
    host.offset = mirror_.pointer(host.offset, 1);
    return host;
  }

  AttentionTensors& tensors_;
  DeviceMirror mirror_;
};

// ---- against the reference

// Of sums over keys of products over a head.
double terms_of(const AttentionProblem& problem) {
  return static_cast<double>((problem.queries + problem.keys) * (problem.size_qk + problem.size_v) *
                             (problem.heads / problem.groups));
}
constexpr double kMagnitude = 100.0;  // of a term: products of a few normal numbers

void expect_same(Matrix& got, Matrix& expected, const AttentionProblem& problem, const char* what) {
  EXPECT_TRUE(te::testing::same_but_rounding(got, expected, terms_of(problem), kMagnitude)) << what;
}

// Only of queries that see a key: elsewhere cuDNN leaves the statistics undefined.
void expect_same_statistics(AttentionTensors& got, AttentionTensors& expected) {
  for (int64_t i = 0; i < expected.statistics.numel(); ++i) {
    const double value = expected.statistics.get(i);
    if (std::isfinite(value)) {
      const double bound = 2 * te::testing::unit_roundoff(DType::kFloat32) * std::abs(value) +
                           terms_of(expected.problem()) * kMagnitude * 0x1p-50;
      EXPECT_NEAR(got.statistics.get(i), value, bound) << "statistics " << i;
    }
  }
}

void copy(Matrix& from, Matrix& to) {
  std::memcpy(to.data<void>(), from.data<void>(), from.size_bytes());
}

void expect_matches_reference(const AttentionCase& spec) {
  SCOPED_TRACE(spec.name);
  AttentionTensors expected(spec);
  AttentionTensors got(spec);
  const te::Context host;
  te::reference::attention_forward(expected.forward_args(), host);
  OnDevice(got).forward();
  expect_same(got.o.matrix(), expected.o.matrix(), spec.problem, "o");
  if (!spec.problem.has_statistics) {
    return;
  }
  expect_same_statistics(got, expected);
  // From the same rounded output and statistics.
  copy(expected.o.matrix(), got.o.matrix());
  copy(expected.statistics, got.statistics);
  te::reference::attention_backward(expected.backward_args(), host);
  OnDevice(got).backward();
  expect_same(got.grad_q.matrix(), expected.grad_q.matrix(), spec.problem, "grad_q");
  expect_same(got.grad_k.matrix(), expected.grad_k.matrix(), spec.problem, "grad_k");
  expect_same(got.grad_v.matrix(), expected.grad_v.matrix(), spec.problem, "grad_v");
  if (spec.has_grad_bias) {
    expect_same(got.grad_bias, expected.grad_bias, spec.problem, "grad_bias");
  }
}

// Of cuDNN: before and after its backward takes any number of keys, and a late one.
constexpr size_t kVersions[] = {91300, 91900, 92801};

TEST(CudaAttention, EveryProblemMatchesTheReference) {
  const Architecture architecture("90");
  for (const size_t version : kVersions) {
    if (kIsSlowDevice && version != kVersions[0]) {
      continue;
    }
    const FakeCudnn library(version);
    for (AttentionCase& spec : all_cases()) {
      SCOPED_TRACE(version);
      expect_matches_reference(spec);
    }
  }
}

// Which hides scores by the lowest finite number.
TEST(CudaAttention, TheOldestVersionMatchesTheReference) {
  const Architecture architecture("90");
  const FakeCudnn library(90700);
  const AttentionProblem self = problem(2, 2, 1, 9, 9);
  expect_matches_reference({.name = "full", .problem = self});
  expect_matches_reference({.name = "causal", .problem = banded(self, -1, 0, false)});
  expect_matches_reference({.name = "padding causal",
                            .problem = banded(problem(2, 2, 1, 9, 9), -1, 0, false),
                            .lengths_q = {5, 9},
                            .lengths_kv = {5, 9}});
}

TEST(CudaAttention, TakesFloat16AndForwardsAlone) {
  const Architecture architecture("90");
  const FakeCudnn library;
  for (AttentionCase& spec : all_cases()) {
    spec.problem.dtype = DType::kFloat16;
    expect_matches_reference(spec);
    spec.problem.has_statistics = false;
    expect_matches_reference(spec);
  }
}

TEST(CudaAttention, IsDeterministicWhereAsked) {
  const Architecture architecture("90");
  const FakeCudnn library;
  for (AttentionCase& spec : all_cases()) {
    spec.problem.is_deterministic = true;
    if (!spec.problem.has_bias) {
      expect_matches_reference(spec);
    }
  }
}

TEST(CudaAttention, TakesTheHeadSizesOfLatentAttention) {
  const FakeCudnn library;
  AttentionProblem latent = problem(1, 2, 2, 4, 4);
  latent.size_qk = 192;
  latent.size_v = 128;
  for (const char* capability : {"90", "100"}) {
    const Architecture architecture(capability);
    expect_matches_reference({.name = capability, .problem = latent});
  }
}

TEST(CudaAttention, MakesAPlanOnce) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionCase spec{.name = "once", .problem = problem(1, 2, 1, 3, 7)};
  spec.problem.scale = 0.12345F;  // no other test's
  AttentionTensors tensors(spec);
  OnDevice device(tensors);
  device.forward();
  device.backward();
  const auto first = FakeCudnn::calls();
  const size_t built = cuda::attention_plans_built();
  EXPECT_EQ(first.plans, 2);
  EXPECT_EQ(first.heuristics, 2);
  for (int i = 0; i < 3; ++i) {
    device.forward();
    device.backward();
  }
  EXPECT_EQ(FakeCudnn::calls().plans, first.plans);
  EXPECT_EQ(FakeCudnn::calls().heuristics, first.heuristics);
  EXPECT_EQ(FakeCudnn::calls().executions, first.executions + 6);
  EXPECT_EQ(cuda::attention_plans_built(), built);
}

TEST(CudaAttention, SharesAPlanAmongPackedBatchesOfAboutTheSameSize) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionCase spec{.name = "packed",
                     .problem = problem(0, 2, 1, 64, 64),
                     .format = AttentionFormat::kThd,
                     .lengths_q = {30, 64},
                     .lengths_kv = {30, 64}};
  spec.problem.scale = 0.23456F;
  for (const int32_t length : {30, 29, 25}) {
    spec.lengths_q[0] = length;
    spec.lengths_kv[0] = length;
    expect_matches_reference(spec);
  }
  EXPECT_EQ(FakeCudnn::calls().plans, 2);
}

TEST(CudaAttention, ForgetsThePlanThatWasNotUsedForLongest) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionCase spec{.name = "many", .problem = problem(1, 1, 1, 2, 2)};
  spec.problem.has_statistics = false;
  const auto run = [&](int number) {
    spec.problem.scale = 1000.0F + static_cast<float>(number);
    AttentionTensors tensors(spec);
    OnDevice(tensors).forward();
  };
  constexpr int kMost = 256;
  for (int i = 0; i < kMost; ++i) {
    run(i);
  }
  run(0);      // used again, so that 1 is the oldest
  run(kMost);  // takes its place
  const int plans = FakeCudnn::calls().plans;
  run(0);
  run(2);
  EXPECT_EQ(FakeCudnn::calls().plans, plans);
  run(1);
  EXPECT_EQ(FakeCudnn::calls().plans, plans + 1);
}

TEST(CudaAttention, WritesWideStarts) {
  const Architecture architecture("90");
  AttentionCase spec{.name = "wide",
                     .problem = problem(0, 2, 1, 9, 9),
                     .format = AttentionFormat::kThd,
                     .lengths_q = {3, 9},
                     .lengths_kv = {7, 11}};
  AttentionTensors tensors(spec);
  const te::AttentionForwardArgs args = tensors.forward_args();
  const cuda::StartsTable starts(args);
  std::vector<int32_t> lengths(4);
  std::vector<std::vector<int64_t>> got(static_cast<size_t>(starts.count()),
                                        std::vector<int64_t>(3));
  DeviceMirror mirror;
  cuda::SequenceNumbers numbers;
  numbers.lengths_q = mirror.pointer(lengths.data(), 4);
  numbers.lengths_kv = numbers.lengths_q + 2;
  for (size_t i = 0; i < got.size(); ++i) {
    numbers.starts[i] = mirror.pointer(got[i].data(), 3);
  }
  const te::AttentionSequences sequences{.cu_q = mirror.pointer(tensors.cu_q.data(), 3),
                                         .cu_kv = mirror.pointer(tensors.cu_kv.data(), 3),
                                         .first_q = nullptr,
                                         .first_kv = nullptr};
  cuda::write_sequence_numbers(tensors.problem(), sequences, starts, true, numbers, kOnDevice);
  mirror.download();
  EXPECT_EQ(lengths, (std::vector<int32_t>{3, 9, 7, 9}));  // not beyond the longest
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& of = starts.at(static_cast<int>(i));
    const auto& cu = of.is_query ? tensors.cu_q : tensors.cu_kv;
    for (size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(got[i][b], cu[b] * of.token_stride);
    }
  }
}

// ---- refusals

std::string reason(const AttentionProblem& problem, int capability = 90, size_t version = 91900) {
  const char* const text =
      cuda::reason_against(problem, {.compute_capability = capability, .version = version});
  return text == nullptr ? "" : text;
}
AttentionProblem with(AttentionProblem problem, int64_t AttentionProblem::* member, int64_t value) {
  problem.*member = value;
  return problem;
}

TEST(CudaAttentionRules, NameWhatTheyRefuse) {
  using P = AttentionProblem;
  const P self = problem(2, 2, 2, 16, 16);
  P packed = self;
  packed.has_lengths = packed.is_packed = true;
  packed.tokens_q = packed.tokens_kv = 20;
  P wide_type = self;
  wide_type.dtype = DType::kFloat32;
  P deterministic = self;
  deterministic.is_deterministic = true;
  P lengths_with_bias = biased(self, 1, 1);
  lengths_with_bias.has_lengths = true;
  EXPECT_EQ(reason(self), "");
  EXPECT_EQ(reason(self, 80), "");
  EXPECT_EQ(reason(self, 75), "it needs sm_80 or later, this is sm_75");
  EXPECT_EQ(reason(wide_type), "it takes float16 and bfloat16, not float32");
  EXPECT_EQ(reason(with(self, &P::queries, 0)), "a tensor is empty");
  EXPECT_EQ(reason(with(self, &P::size_v, 20)),
            "head sizes are 16 and 20; it takes multiples of 8");
  EXPECT_EQ(reason(with(self, &P::size_qk, 264)),
            "head sizes are 264 and 8; sm_90 takes up to 256");
  EXPECT_EQ(reason(with(self, &P::size_qk, 136), 80),
            "head sizes are 136 and 8; sm_80 takes up to 128");
  EXPECT_NE(reason(with(self, &P::size_qk, 192), 100), "");
  EXPECT_EQ(reason(with(with(self, &P::size_qk, 192), &P::size_v, 128), 100), "");
  EXPECT_NE(reason(with(with(self, &P::size_qk, 192), &P::size_v, 128), 100, 91002), "");
  EXPECT_NE(reason(problem(2, 2, 2, 1, 1)), "");
  EXPECT_EQ(reason(packed), "");
  EXPECT_NE(reason(packed, 80), "");
  EXPECT_NE(reason(packed, 120), "");
  EXPECT_NE(reason(lengths_with_bias), "");
  EXPECT_NE(reason(with(biased(self, 1, 1), &P::keys, 12)), "");
  EXPECT_NE(reason(banded(problem(1, 1, 1, 9, 8), -1, 0, true)), "");
  EXPECT_NE(reason(banded(problem(1, 1, 1, 9, 8), 2, 0, false)), "");
  EXPECT_EQ(reason(banded(problem(1, 1, 1, 9, 8), -1, 0, false)), "");
  EXPECT_NE(reason(dropped(banded(problem(1, 1, 1, 8, 16), -1, 0, true), 0.1F)), "");
  EXPECT_NE(reason(biased(banded(problem(1, 1, 1, 8, 16), -1, 0, true), 1, 1)), "");
  EXPECT_NE(reason(banded(self, 2, -1, false), 90, 91001), "");
  EXPECT_NE(reason(with(banded(self, 2, -1, false), &P::keys, 1032), 90, 91400), "");
  EXPECT_EQ(reason(deterministic), "");
  EXPECT_NE(reason(deterministic, 80), "");
  EXPECT_NE(reason(deterministic, 100, 91800), "");
  EXPECT_EQ(reason(deterministic, 100), "");
  EXPECT_NE(reason(biased(deterministic, 1, 1)), "");
  EXPECT_NE(reason(dropped(deterministic, 0.1F), 100), "");
}

TEST(CudaAttention, RefusesVersionsItDoesNotKnow) {
  const AttentionProblem self = problem(2, 2, 2, 16, 16);
  for (const size_t version : {size_t{8907}, size_t{90600}, size_t{91000}, size_t{100000}}) {
    const FakeCudnn library(version);
    EXPECT_NE(te::attention_refusal(self, kOnDevice), nullptr) << version;
  }
  const FakeCudnn library(90700);
  EXPECT_EQ(te::attention_refusal(self, kOnDevice), nullptr);
}

TEST(CudaAttention, RefusesWhatIsNotAligned) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionTensors tensors({.name = "", .problem = problem(1, 1, 1, 4, 4)});
  te::AttentionForwardArgs args = tensors.forward_args();
  args.inputs.k.token_stride += 4;
  te::testing::expect_error<te::NotImplementedError>(
      [&] { te::attention_forward(args, kOnDevice); }, {"multiples of 16 bytes"});
}

TEST(CudaAttention, RepeatsWhyThereIsNoPlan) {
  const Architecture architecture("90");
  const FakeCudnn library;
  AttentionCase spec{.name = "refused", .problem = problem(1, 1, 1, 4, 4)};
  spec.problem.scale = 0.34567F;
  AttentionTensors tensors(spec);
  FakeCudnn::calls().has_no_engine = true;
  for (int i = 0; i < 2; ++i) {
    te::testing::expect_error<te::NotImplementedError>(
        [&] { te::attention_forward(tensors.forward_args(), kOnDevice); }, {"cuDNN has no plan"});
    FakeCudnn::calls().has_no_engine = false;  // it is not asked again
  }
  EXPECT_EQ(FakeCudnn::calls().heuristics, 1);
}

}  // namespace
