// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The reference of attention.h against its formulas by other means (probabilities in closed form,
// differences of the forward), and the checks of arguments.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>

#include <functional>

#include "helpers/attention_problem.h"
#include "helpers/errors.h"
#include "reference/attention.h"

namespace {

namespace te = transformer_engine;
using te::AttentionProblem;
using te::DType;
using te::testing::AttentionCase;
using te::testing::AttentionFormat;
using te::testing::AttentionTensors;
using te::testing::expect_error;
using te::testing::Matrix;

AttentionCase small_case() {
  AttentionCase spec{.name = "small", .problem = {}};
  spec.problem.batch = 2;
  spec.problem.heads = 4;
  spec.problem.groups = 2;
  spec.problem.queries = 3;
  spec.problem.keys = 5;
  spec.problem.size_qk = 4;
  spec.problem.size_v = 2;
  spec.problem.dtype = DType::kFloat32;
  spec.problem.scale = 0.7F;
  spec.problem.has_statistics = true;
  return spec;
}

void forward(AttentionTensors& tensors) { te::attention_forward(tensors.forward_args(), {}); }

// Without scores, every visible value has the same weight.
TEST(AttentionReference, AveragesWhatIsVisibleWhereScoresAreZero) {
  AttentionCase spec = small_case();
  spec.problem.scale = 0.0F;
  spec.problem.left = 1;
  spec.problem.right = 1;
  spec.problem.is_bottom_right = true;
  AttentionTensors tensors(spec);
  forward(tensors);
  const AttentionProblem& problem = tensors.problem();
  const int64_t row_v = problem.groups * problem.size_v;
  const int64_t row_o = problem.heads * problem.size_v;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.heads; ++h) {
      for (int64_t i = 0; i < problem.queries; ++i) {
        double sum = 0.0;
        const int64_t from = std::max<int64_t>(0, i + 2 - 1);
        const int64_t to = std::min<int64_t>(problem.keys - 1, i + 2 + 1);
        for (int64_t j = from; j <= to; ++j) {
          sum += tensors.v.matrix().get((b * problem.keys + j) * row_v + h / 2 * problem.size_v);
        }
        const double expected = sum / static_cast<double>(to - from + 1);
        const double got =
            tensors.o.matrix().get((b * problem.queries + i) * row_o + h * problem.size_v);
        EXPECT_NEAR(got, expected, 2 * te::testing::kFloatRoundoff * (std::abs(expected) + 1.0));
        EXPECT_NEAR(tensors.statistics.data<float>()[(b * problem.heads + h) * problem.queries + i],
                    std::log(static_cast<double>(to - from + 1)), te::testing::kFloatRoundoff * 2);
      }
    }
  }
}

// sum(O * dO), of which the backward gives the gradient. In FP64 but for the rounding of O to FP32.
double objective(AttentionTensors& tensors) {
  forward(tensors);
  double sum = 0.0;
  for (int64_t i = 0; i < tensors.o.matrix().numel(); ++i) {
    const double o = tensors.o.matrix().get(i);
    sum += std::isnan(o) ? 0.0 : o * tensors.grad_o.matrix().get(i);
  }
  return sum;
}

// Central differences with a step of 2^-6: their own error is of the order of its square times the
// third derivative, which is some units here; what is rounded to FP32 adds 2^-24 / 2^-6.
void expect_gradient(AttentionTensors& tensors, Matrix& input, Matrix& gradient, const char* what) {
  constexpr float kStep = 0x1p-6F;
  const double bound = 40.0 * kStep * kStep;
  for (int64_t i = 0; i < input.numel(); ++i) {
    const auto value = static_cast<float>(input.get(i));
    input.set(i, value + kStep);
    const double above = objective(tensors);
    input.set(i, value - kStep);
    const double below = objective(tensors);
    input.set(i, value);
    EXPECT_NEAR(gradient.get(i), (above - below) / (2.0 * kStep), bound) << what << " " << i;
  }
}

void expect_gradients(const AttentionCase& spec) {
  SCOPED_TRACE(spec.name);
  AttentionTensors tensors(spec);
  forward(tensors);
  te::attention_backward(tensors.backward_args(), {});
  expect_gradient(tensors, tensors.q.matrix(), tensors.grad_q.matrix(), "q");
  expect_gradient(tensors, tensors.k.matrix(), tensors.grad_k.matrix(), "k");
  expect_gradient(tensors, tensors.v.matrix(), tensors.grad_v.matrix(), "v");
  if (spec.has_grad_bias) {
    expect_gradient(tensors, tensors.bias, tensors.grad_bias, "bias");
  }
}

TEST(AttentionReference, GradientsMatchDifferences) {
  AttentionCase spec = small_case();
  expect_gradients(spec);
  spec.name = "causal with a bias of heads";
  spec.problem.right = 0;
  spec.problem.has_bias = true;
  spec.problem.bias_heads = 0;
  spec.has_grad_bias = true;
  expect_gradients(spec);
  spec = small_case();
  spec.name = "dropout";
  spec.problem.dropout = 0.4F;
  expect_gradients(spec);
  spec = small_case();
  spec.name = "packed";
  spec.format = AttentionFormat::kThd;
  spec.lengths_q = {1, 3, 0};
  spec.lengths_kv = {4, 5, 2};
  spec.gap = 1;
  expect_gradients(spec);
}

TEST(AttentionReference, ClearsWhatBelongsToNoSequence) {
  AttentionCase spec = small_case();
  spec.lengths_q = {1, 3};
  spec.lengths_kv = {2, 0};
  AttentionTensors tensors(spec);
  forward(tensors);
  te::attention_backward(tensors.backward_args(), {});
  const int64_t row = tensors.problem().heads * tensors.problem().size_v;
  for (int64_t i = row; i < tensors.o.matrix().numel(); ++i) {  // one query sees a key
    EXPECT_EQ(tensors.o.matrix().get(i), 0.0);
  }
  for (Matrix* gradient :
       {&tensors.grad_q.matrix(), &tensors.grad_k.matrix(), &tensors.grad_v.matrix()}) {
    for (int64_t i = gradient->numel() / 2; i < gradient->numel(); ++i) {
      EXPECT_EQ(gradient->get(i), 0.0);
    }
  }
}

TEST(AttentionReference, DropsTheWantedShareAndKeepsTheMean) {
  AttentionProblem problem;
  problem.dropout = 0.25F;
  const int64_t seed = 11;
  const int64_t offset = 5;
  te::AttentionInputs inputs;
  inputs.seed = &seed;
  inputs.offset = &offset;
  constexpr int64_t kCount = 100000;
  int64_t dropped = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double factor = te::reference::dropout_factor(problem, inputs, i);
    EXPECT_TRUE(factor == 0.0 || factor == 1.0 / 0.75);
    dropped += factor == 0.0 ? 1 : 0;
  }
  // Five deviations of a binomial distribution.
  EXPECT_NEAR(static_cast<double>(dropped), 0.25 * kCount, 5.0 * std::sqrt(0.1875 * kCount));
}

TEST(AttentionReference, TakesNothing) {
  for (int64_t AttentionProblem::* const member :
       {&AttentionProblem::batch, &AttentionProblem::queries, &AttentionProblem::keys}) {
    AttentionCase spec = small_case();
    spec.problem.*member = 0;
    AttentionTensors tensors(spec);
    forward(tensors);
    te::attention_backward(tensors.backward_args(), {});
  }
}

// ---- arguments

void expect_refused(const std::function<void(te::AttentionForwardArgs&)>& change,
                    std::initializer_list<const char*> words) {
  AttentionTensors tensors(small_case());
  te::AttentionForwardArgs args = tensors.forward_args();
  change(args);
  expect_error<te::ValueError>([&] { te::attention_forward(args, {}); }, words);
  EXPECT_TRUE(std::isnan(tensors.o.matrix().get(0)));
}

TEST(AttentionArguments, AreCheckedBeforeAnythingIsWritten) {
  using Args = te::AttentionForwardArgs;
  expect_refused([](Args& args) { args.problem.batch = -1; }, {"batch is -1", "0 or more"});
  expect_refused([](Args& args) { args.problem.groups = 3; }, {"heads is 4 and groups 3"});
  expect_refused([](Args& args) { args.problem.scale = __builtin_inff(); }, {"scale is inf"});
  expect_refused([](Args& args) { args.problem.dropout = 1.0F; }, {"dropout is 1", "[0, 1)"});
  expect_refused([](Args& args) { args.problem.is_packed = true; }, {"has_lengths false"});
  expect_refused([](Args& args) { args.problem.has_lengths = true; }, {"cu_q or cu_kv is null"});
  expect_refused([](Args& args) { args.problem.dropout = 0.5F; }, {"seed or offset is null"});
  expect_refused([](Args& args) { args.problem.has_bias = true; }, {"bias has no data"});
  expect_refused(
      [](Args& args) {
        args.problem.has_bias = true;
        args.problem.bias_heads = 3;
      },
      {"bias_heads is 3", "1 or 4"});
  expect_refused([](Args& args) { args.inputs.q.data = nullptr; }, {"q has no data"});
  expect_refused([](Args& args) { args.o.token_stride = -8; }, {"o has strides", "-8"});
  expect_refused([](Args& args) { args.statistics = nullptr; }, {"statistics is null"});
}

TEST(AttentionArguments, OfTheBackwardAreChecked) {
  AttentionTensors tensors(small_case());
  te::AttentionBackwardArgs args = tensors.backward_args();
  args.grad_bias = args.grad_q;
  expect_error<te::ValueError>([&] { te::attention_backward(args, {}); }, {"grad_bias is given"});
  args = tensors.backward_args();
  args.statistics = nullptr;
  expect_error<te::ValueError>([&] { te::attention_backward(args, {}); }, {"statistics"});
  args = tensors.backward_args();
  args.grad_k.data = nullptr;
  expect_error<te::ValueError>([&] { te::attention_backward(args, {}); }, {"grad_k has no data"});
  args = tensors.backward_args();
  args.problem.dtype = DType::kFloat8E4M3;
  expect_error<te::TypeError>([&] { te::attention_backward(args, {}); }, {"dtype is"});
}

TEST(AttentionArguments, ABuildWithoutCudaSaysSo) {
  const AttentionProblem problem = small_case().problem;
  EXPECT_STREQ(te::attention_refusal(problem, {}), "the tensors are not in device memory");
  AttentionTensors tensors(small_case());
  EXPECT_EQ(te::attention_backward_refusal(tensors.backward_args(), {}), nullptr);
  const te::Context device{.device = te::DeviceType::kCUDA};
  const std::string reason = te::attention_refusal(problem, device);
  EXPECT_FALSE(reason.empty());
  expect_error<te::NotImplementedError>(
      [&] { te::attention_forward(tensors.forward_args(), device); },
      {"no implementation takes this problem", "reference: the tensors are not in host memory"});
}

}  // namespace
