// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The checks of the arguments of FP8 attention, and that host memory is refused: what it computes
// is tested on the CUDA backend (tests/cpp/cuda/test_attention_fp8.cpp).
#include <gtest/gtest.h>
#include <transformer_engine/error.h>

#include <functional>

#include "helpers/attention_fp8_problem.h"
#include "helpers/errors.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::AttentionFp8Case;
using te::testing::AttentionFp8Tensors;
using te::testing::expect_error;
using Forward = te::AttentionFp8ForwardArgs;
using Backward = te::AttentionFp8BackwardArgs;

AttentionFp8Case small_case() {
  AttentionFp8Case spec{.name = "small", .problem = {}};
  spec.problem.batch = 2;
  spec.problem.heads = 4;
  spec.problem.groups = 2;
  spec.problem.queries = 3;
  spec.problem.keys = 5;
  spec.problem.size_qk = 16;
  spec.problem.size_v = 16;
  spec.problem.dtype = DType::kFloat8E4M3;
  spec.problem.has_statistics = true;
  return spec;
}

template <typename Error = te::ValueError>
void expect_forward_refused(const std::function<void(Forward&)>& change,
                            std::initializer_list<const char*> words) {
  AttentionFp8Tensors tensors(small_case());
  Forward args = tensors.forward_args(tensors.scales.data());
  change(args);
  expect_error<Error>([&] { te::attention_fp8_forward(args, {}); }, words);
  EXPECT_TRUE(std::isnan(tensors.o.get(0, 0, 0, 0)));
}
template <typename Error = te::ValueError>
void expect_backward_refused(const std::function<void(Backward&)>& change,
                             std::initializer_list<const char*> words) {
  AttentionFp8Tensors tensors(small_case());
  Backward args = tensors.backward_args(tensors.scales.data());
  change(args);
  expect_error<Error>([&] { te::attention_fp8_backward(args, {}); }, words);
  EXPECT_TRUE(std::isnan(tensors.grad_q.get(0, 0, 0, 0)));
}

TEST(AttentionFp8Arguments, OfTheForwardAreChecked) {
  expect_forward_refused([](Forward& args) { args.problem.keys = -1; },
                         {"attention_fp8_forward: keys is -1"});
  expect_forward_refused([](Forward& args) { args.inputs.k.data = nullptr; }, {"k has no data"});
  expect_forward_refused([](Forward& args) { args.o.data = nullptr; }, {"o has no data"});
  expect_forward_refused([](Forward& args) { args.statistics = nullptr; }, {"statistics is null"});
  expect_forward_refused([](Forward& args) { args.problem.has_lengths = true; }, {"cu_q or cu_kv"});
  expect_forward_refused([](Forward& args) { args.descale_k = nullptr; }, {"descale_k is null"});
  expect_forward_refused([](Forward& args) { args.scale_o = nullptr; }, {"scale_o is null"});
  expect_forward_refused([](Forward& args) { args.amax = nullptr; }, {"amax is null"});
}

TEST(AttentionFp8Arguments, OfTheBackwardAreChecked) {
  expect_backward_refused([](Backward& args) { args.statistics = nullptr; }, {"statistics"});
  expect_backward_refused([](Backward& args) { args.problem.has_statistics = false; },
                          {"statistics"});
  expect_backward_refused([](Backward& args) { args.grad_v.data = nullptr; }, {"grad_v has no"});
  expect_backward_refused([](Backward& args) { args.grad_o.head_stride = -1; }, {"grad_o has str"});
  expect_backward_refused([](Backward& args) { args.descale_o = nullptr; }, {"descale_o is null"});
  expect_backward_refused([](Backward& args) { args.descale_dp = nullptr; },
                          {"descale_dp is null"});
  expect_backward_refused([](Backward& args) { args.scale_grad_v = nullptr; },
                          {"scale_grad_v is null"});
  expect_backward_refused([](Backward& args) { args.amax = nullptr; }, {"amax is null"});
}

TEST(AttentionFp8Arguments, TypesAreChecked) {
  expect_forward_refused<te::TypeError>(
      [](Forward& args) { args.problem.dtype = DType::kBFloat16; },
      {"dtype is bfloat16", "float8_e4m3", "float8_e5m2"});
  expect_forward_refused<te::TypeError>([](Forward& args) { args.types.o = DType::kFloat32; },
                                        {"types.o is float32", "float16 or bfloat16"});
  expect_backward_refused<te::TypeError>(
      [](Backward& args) { args.types.grad_o = DType::kFloat16; }, {"types.grad_o is float16"});
  expect_backward_refused<te::TypeError>([](Backward& args) { args.types.grads = DType::kByte; },
                                         {"types.grads is"});
  expect_backward_refused<te::TypeError>(
      [](Backward& args) { args.types.saved_o = DType::kFloat32; }, {"types.saved_o is float32"});
}

// Results of 16 bits have no scales; then only the device is missing.
TEST(AttentionFp8Arguments, HostMemoryIsRefused) {
  const auto has_sixteen_bits = [](auto& args) {
    args.types = {.o = DType::kBFloat16, .saved_o = DType::kBFloat16, .grads = DType::kBFloat16};
  };
  expect_forward_refused<te::NotImplementedError>(
      [&](Forward& args) {
        has_sixteen_bits(args);
        args.scale_o = nullptr;
      },
      {"attention_fp8_forward: no implementation takes this problem", "cuda: "});
  expect_backward_refused<te::NotImplementedError>(
      [&](Backward& args) {
        has_sixteen_bits(args);
        args.descale_o = args.scale_grad_q = args.scale_grad_k = args.scale_grad_v = nullptr;
      },
      {"attention_fp8_backward: no implementation takes this problem", "cuda: "});
  AttentionFp8Tensors tensors(small_case());
  EXPECT_STREQ(te::attention_fp8_refusal(tensors.problem(), {}, {}),
               "the tensors are not in device memory");
  const Backward args = tensors.backward_args(tensors.scales.data());
  EXPECT_STREQ(te::attention_fp8_backward_refusal(args, {}),
               "the tensors are not in device memory");
  const te::Context device{.device = te::DeviceType::kCUDA};
  EXPECT_NE(te::attention_fp8_refusal(tensors.problem(), {}, device), nullptr);
  EXPECT_NE(te::attention_fp8_backward_refusal(args, device), nullptr);
}

}  // namespace
