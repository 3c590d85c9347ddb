// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ops on lists: the scalar reference against FP64 formulas with running error bounds, the CPU
// kernels against the reference bit for bit; norms against FP64 sums.
#include <gtest/gtest.h>
#include <transformer_engine/error.h>
#include <transformer_engine/multi_tensor.h>

#include <limits>
#include <optional>
#include <string>

#include "cpu/multi_tensor_kernels.h"
#include "helpers/errors.h"
#include "helpers/isas.h"
#include "helpers/multi_tensor_problem.h"
#include "numerics/adam.h"
#include "numerics/e8m0.h"
#include "numerics/scale.h"
#include "reference/cast.h"
#include "reference/multi_tensor.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::adam_cases;
using te::testing::AdamCase;
using te::testing::AdamKept;
using te::testing::AdamProblem;
using te::testing::all_close;
using te::testing::expect_error;
using te::testing::Expected;
using te::testing::is_close;
using te::testing::kHighPrecision;
using te::testing::Matrix;
using te::testing::same_bytes;
using te::testing::same_tensors;
using te::testing::sgd_cases;
using te::testing::SgdProblem;
using te::testing::Tensors;

const std::vector<int64_t> kSmall = {3, 0, 1, 40};
// More than a thread takes, and so that threads meet within a tensor.
const std::vector<int64_t> kSizes = {17, 0, 20011, 1, 33000};
constexpr te::Context kTwoThreads{.num_threads = 2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- Adam

TEST(MultiTensorAdam, TheReferenceMatchesTheFormula) {
  for (const AdamCase& setting : adam_cases()) {
    AdamProblem before(setting, kSmall);
    AdamProblem after = before;
    te::reference::multi_tensor_adam(after.args(), {});
    for (size_t tensor = 0; tensor < kSmall.size(); ++tensor) {
      for (int64_t i = 0; i < kSmall[tensor]; ++i) {
        const auto expected = before.expected(tensor, i);
        EXPECT_TRUE(is_close(after.exp_avgs[tensor].get(i), expected.exp_avg, setting.moment));
        EXPECT_TRUE(
            is_close(after.exp_avg_sqs[tensor].get(i), expected.exp_avg_sq, setting.moment));
        EXPECT_TRUE(is_close(after.precise_param(tensor, i), expected.param, after.precise_dtype()))
            << after.precise_param(tensor, i) << " expected " << expected.param.value << " within "
            << expected.param.bound;
      }
    }
  }
}

TEST(MultiTensorAdam, KernelsGiveTheReferencesBits) {
  for (const AdamCase& setting : adam_cases()) {
    SCOPED_TRACE(::testing::Message()
                 << "kept " << static_cast<int>(setting.kept) << " grad "
                 << te::dtype_name(setting.grad) << " param " << te::dtype_name(setting.param)
                 << " moment " << te::dtype_name(setting.moment));
    AdamProblem expected(setting, kSmall);
    AdamProblem got = expected;
    te::reference::multi_tensor_adam(expected.args(), {});
    te::multi_tensor_adam(got.args(), {});
    te::testing::expect_same_adam(got, expected);
  }
}

TEST(MultiTensorAdam, ThreadsMeetAnywhere) {
  for (const AdamKept kept :
       {AdamKept::kParam, AdamKept::kMaster, AdamKept::kRemainder, AdamKept::kFp8}) {
    const DType param = kept == AdamKept::kFp8 ? DType::kFloat8E4M3 : DType::kBFloat16;
    const AdamCase setting{.kept = kept, .grad = DType::kBFloat16, .param = param};
    AdamProblem expected(setting, kSizes);
    AdamProblem got = expected;
    te::reference::multi_tensor_adam(expected.args(), {});
    te::multi_tensor_adam(got.args(), kTwoThreads);
    te::testing::expect_same_adam(got, expected);
  }
}

TEST(MultiTensorAdam, RoundedCopiesAreThoseOfTheMaster) {
  for (const DType param : kHighPrecision) {
    AdamProblem problem({.kept = AdamKept::kMaster, .param = param}, kSmall);
    te::multi_tensor_adam(problem.args(), {});
    for (size_t tensor = 0; tensor < kSmall.size(); ++tensor) {
      Matrix rounded(param, 1, kSmall[tensor]);
      for (int64_t i = 0; i < kSmall[tensor]; ++i) {
        rounded.set(i, static_cast<float>(problem.masters[tensor].get(i)));
      }
      EXPECT_TRUE(same_bytes(problem.params[tensor], rounded));
    }
  }
}

TEST(MultiTensorAdam, Fp8ParametersHaveTheMastersCodesAndAmax) {
  for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    AdamProblem problem({.kept = AdamKept::kFp8, .param = format}, kSmall);
    te::multi_tensor_adam(problem.args(), {});
    for (size_t tensor = 0; tensor < kSmall.size(); ++tensor) {
      const float scale = problem.scales[tensor].data<float>()[0];
      if (kSmall[tensor] == 0) {
        continue;
      }
      float amax = 0.0F;
      for (int64_t i = 0; i < kSmall[tensor]; ++i) {
        const float master = problem.masters[tensor].data<float>()[i];
        EXPECT_EQ(problem.params[tensor].data<uint8_t>()[i],
                  te::reference::encode_fp8(format, master * scale));
        amax = std::max(amax, std::abs(master));
      }
      EXPECT_EQ(problem.amaxes[tensor].get(0), tensor % 2 == 0 ? amax : 100.0);  // raised
      EXPECT_EQ(problem.scale_invs[tensor].data<float>()[0], 1.0F / scale);
    }
  }
}

TEST(MultiTensorAdam, NoopOfOneWritesNothing) {
  for (const AdamKept kept : {AdamKept::kParam, AdamKept::kFp8}) {
    const DType param = kept == AdamKept::kFp8 ? DType::kFloat8E5M2 : DType::kFloat32;
    AdamProblem before({.kept = kept, .param = param, .is_capturable = true}, kSmall);
    AdamProblem after = before;
    after.noop = 1;
    te::multi_tensor_adam(after.args(), {});
    te::testing::expect_same_adam(after, before);
  }
}

TEST(MultiTensorAdam, BiasCorrectionIsExactForLargeSteps) {
  // 1 - beta^t in FP32 would lose half the digits for beta2 near 1.
  for (const int32_t step : {1, 2, 3, 10, 1000, 2147483647}) {
    const auto numbers = te::numerics::adam_numbers({.beta1 = 0.9,
                                                     .beta2 = 0.9999,
                                                     .epsilon = 0,
                                                     .weight_decay = 0,
                                                     .has_bias_correction = true},
                                                    0.1F, step);
    EXPECT_EQ(numbers.correction1, static_cast<float>(1.0 / (1.0 - std::pow(0.9, step))));
    EXPECT_NEAR(numbers.correction2, 1.0 / std::sqrt(1.0 - std::pow(0.9999, step)),
                te::testing::kFloatRoundoff * numbers.correction2);
  }
}

TEST(MultiTensorAdam, NaNAndInfinityPropagate) {
  AdamProblem problem({}, {5});
  problem.grads[0].set(1, std::nanf(""));
  problem.grads[0].set(3, kInfinity);
  te::multi_tensor_adam(problem.args(), {});
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::isfinite(problem.params[0].get(i)), i % 2 == 0);
  }
}

TEST(MultiTensorAdam, NaNBesideRemaindersIsThatOfTheReference) {
  AdamProblem expected({.kept = AdamKept::kRemainder, .param = DType::kBFloat16}, {37});
  expected.grads[0].set(2, std::nanf(""));
  expected.grads[0].set(36, -kInfinity);
  AdamProblem got = expected;
  te::reference::multi_tensor_adam(expected.args(), {});
  te::multi_tensor_adam(got.args(), {});
  EXPECT_TRUE(same_tensors(got.params, expected.params));
  EXPECT_TRUE(same_tensors(got.remainders, expected.remainders));
  EXPECT_TRUE(std::isnan(got.params[0].get(2)) && std::isnan(got.params[0].get(36)));
}

TEST(MultiTensorAdam, TheNaNsOfGpusStayNaNBesideRemainders) {
  for (const uint32_t bits : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U, 0x7FC00000U}) {
    const auto parts = te::numerics::split_float(te::numerics::float_of_bits(bits));
    EXPECT_TRUE(te::numerics::is_nan(te::numerics::float_from_bf16(parts.high)));
    EXPECT_TRUE(te::numerics::is_nan(te::numerics::join_float(parts)));
  }
}

TEST(MultiTensorAdam, RemaindersJoinToTheSameNumberAndTheParameterIsTheNearest) {
  // All upper halves with the lower halves at which the rounding changes.
  for (uint32_t high = 0; high < 0x10000U; ++high) {
    for (const uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const float value = te::numerics::float_of_bits(high << 16 | low);
      if (te::numerics::is_nan(value)) {
        continue;
      }
      const auto parts = te::numerics::split_float(value);
      ASSERT_EQ(te::numerics::bits_of_float(te::numerics::join_float(parts)), high << 16 | low);
      if (low != 0x8000U) {  // a tie goes away from zero here, to even elsewhere
        ASSERT_EQ(parts.high, te::numerics::bf16_from_float(value));
      }
    }
  }
}

TEST(MultiTensorAdam, EveryInstructionSetGivesTheSameBits) {
  const auto tables = TE_TABLES_OF(te::cpu::MultiTensorKernels, multi_tensor_kernels);
  const auto numbers = te::numerics::adam_numbers({.beta1 = 0.9,
                                                   .beta2 = 0.99,
                                                   .epsilon = 1e-8F,
                                                   .weight_decay = 0.1F,
                                                   .has_bias_correction = true},
                                                  0.1F, 3);
  for (const int mode : {0, 1}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::optional<AdamProblem> first;
      std::vector<int16_t> first_remainders(53);
      for (size_t isa = 0; isa < tables.size(); ++isa) {
        AdamProblem problem({}, {53});
        std::vector<int16_t> remainders(53, int16_t{-3});
        std::vector<uint16_t> params(53, uint16_t{0x3F80});
        const bool is_fp8 = kind == te::cpu::kAdamFp8;
        const bool is_plain = kind == te::cpu::kAdamPlain;
        const DType param_type = is_fp8     ? DType::kFloat8E4M3
                                 : is_plain ? DType::kFloat32
                                            : DType::kBFloat16;
        const float amax = tables[isa].table->adam[kind][te::cpu::kAdamAnyTypes][mode](
            {.grad = {problem.grads[0].data<void>(), DType::kFloat32},
             .param = {is_plain ? problem.params[0].data<void>() : params.data(), param_type},
             .exp_avg = {problem.exp_avgs[0].data<void>(), DType::kFloat32},
             .exp_avg_sq = {problem.exp_avg_sqs[0].data<void>(), DType::kFloat32},
             .master = problem.params[0].data<float>(),
             .remainder = remainders.data(),
             .fp8_scale = 11.0F,
             .inv_scale = 0.5F,
             .count = 53},
            numbers);
        EXPECT_EQ(amax > 0.0F, is_fp8);
        if (isa == 0) {
          first.emplace(problem);
          first_remainders = remainders;
        }
        te::testing::expect_same_adam(problem, *first);
        EXPECT_EQ(remainders, first_remainders) << tables[isa].isa;
      }
    }
  }
}

// ---- SGD

TEST(MultiTensorSgd, TheReferenceMatchesTheFormula) {
  for (const auto& setting : sgd_cases()) {
    SgdProblem before(setting, kSmall);
    SgdProblem after = before;
    te::reference::multi_tensor_sgd(after.args(), {});
    for (size_t tensor = 0; tensor < kSmall.size(); ++tensor) {
      for (int64_t i = 0; i < kSmall[tensor]; ++i) {
        const auto expected = before.expected(tensor, i);
        EXPECT_TRUE(is_close(after.params[tensor].get(i), expected.param, setting.param));
        EXPECT_TRUE(is_close(after.momenta[tensor].get(i), expected.momentum, setting.momentum));
        if (setting.has_copy) {
          // The copy is rounded from the FP32 result, not from the parameter.
          EXPECT_TRUE(is_close(after.copies[tensor].get(i), expected.param, DType::kFloat16));
        }
      }
    }
  }
}

TEST(MultiTensorSgd, KernelsGiveTheReferencesBits) {
  for (const auto& setting : sgd_cases()) {
    for (const auto& sizes : {kSmall, kSizes}) {
      SgdProblem expected(setting, sizes);
      SgdProblem got = expected;
      te::reference::multi_tensor_sgd(expected.args(), {});
      te::multi_tensor_sgd(got.args(), kTwoThreads);
      te::testing::expect_same_sgd(got, expected);
      if (sizes == kSizes && setting.grad == setting.param) {
        break;
      }
    }
  }
}

TEST(MultiTensorSgd, NoopWritesNothingAndNoMomentumNeedsNoBuffer) {
  SgdProblem before({.has_copy = true}, kSmall);
  SgdProblem after = before;
  after.noop = 2;
  te::multi_tensor_sgd(after.args(), {});
  te::testing::expect_same_sgd(after, before);
  SgdProblem plain({.momentum_rate = 0.0F}, kSmall);
  SgdProblem untouched = plain;
  te::multi_tensor_sgd(plain.args(), {});
  EXPECT_TRUE(same_tensors(plain.momenta, untouched.momenta));
}

// ---- scale

TEST(MultiTensorScale, RoundsTheProductOnceInEveryPairOfTypes) {
  for (const DType from : kHighPrecision) {
    for (const DType to : kHighPrecision) {
      for (const bool is_device_scale : {false, true}) {
        Tensors inputs, outputs, expected;
        for (const int64_t size : kSizes) {
          inputs.add(from, size);
          outputs.add(to, size);
          expected.add(to, size);
          fill_random(inputs[inputs.size() - 1], static_cast<uint32_t>(size));
        }
        const float scale = 0.37F;
        int32_t noop = 0;
        te::MultiTensorScaleArgs args{.inputs = inputs.list(),
                                      .outputs = expected.list(),
                                      .scale = is_device_scale ? -1.0F : scale,
                                      .device_scale = is_device_scale ? &scale : nullptr,
                                      .noop = &noop};
        te::reference::multi_tensor_scale(args, {});
        args.outputs = outputs.list();
        te::multi_tensor_scale(args, kTwoThreads);
        EXPECT_EQ(noop, 0);
        EXPECT_TRUE(same_tensors(outputs, expected));
        for (int64_t i = 0; i < kSizes[0]; ++i) {  // the reference itself
          Matrix exact(to, 1, 1);
          exact.set(0, static_cast<float>(inputs[0].get(i)) * scale);
          EXPECT_EQ(expected[0].get(i), exact.get(0));
        }
      }
    }
  }
}

TEST(MultiTensorScale, RaisesTheFlagForWhatIsNotFinite) {
  for (const DType dtype : kHighPrecision) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const int64_t at : {int64_t{0}, int64_t{36}, int64_t{20010}}) {
        Tensors inputs;
        inputs.add(dtype, 5);
        inputs.add(dtype, 20011);
        int32_t noop = 0;
        const te::MultiTensorScaleArgs args{
            .inputs = inputs.list(), .outputs = inputs.list(), .scale = 2.0F, .noop = &noop};
        te::multi_tensor_scale(args, kTwoThreads);
        EXPECT_EQ(noop, 0);
        inputs[1].set(at, bad);
        te::multi_tensor_scale(args, kTwoThreads);
        EXPECT_EQ(noop, 1);
        EXPECT_FALSE(std::isfinite(inputs[1].get(at)));
      }
    }
  }
}

TEST(MultiTensorScale, AnOverflowingProductIsNoReasonForTheFlag) {
  Tensors inputs;
  inputs.add(DType::kFloat16, 3);
  inputs[0].set(1, 60000.0F);
  int32_t noop = 0;
  te::multi_tensor_scale(
      {.inputs = inputs.list(), .outputs = inputs.list(), .scale = 4.0F, .noop = &noop}, {});
  EXPECT_EQ(noop, 0);
  EXPECT_EQ(inputs[0].get(1), kInfinity);
}

// ---- norm

struct Norms {
  float norm = -1.0F;
  std::vector<float> per_tensor;
  int32_t noop = 0;
};

Norms norms_of(Tensors& inputs, const float* inv_scale, int threads) {
  Norms norms{.per_tensor = std::vector<float>(inputs.size(), -1.0F)};
  te::multi_tensor_l2norm({.inputs = inputs.list(),
                           .inv_scale = inv_scale,
                           .norm = &norms.norm,
                           .per_tensor = norms.per_tensor.data(),
                           .noop = &norms.noop},
                          {.num_threads = threads});
  return norms;
}

// sqrt of an FP64 sum; terms pass as many additions as the order has, chunks are added in FP64.
Expected norm_of(double sum) {
  constexpr int64_t kChunk = 65536;
  constexpr int kLanes = 64;
  const double relative = te::testing::sum_roundoff(kChunk, kLanes, 2);
  return {std::sqrt(sum), std::sqrt(sum) * relative};  // half of it, after the root, and its own
}

TEST(MultiTensorL2Norm, MatchesTheFP64SumWholeAndPerTensor) {
  for (const DType dtype : kHighPrecision) {
    for (const float inv_scale : {1.0F, 0.3F}) {
      Tensors inputs;
      double total = 0.0;
      std::vector<double> sums;
      for (const int64_t size : {17, 0, 20011, 1, 140000}) {
        inputs.add(dtype, size);
        Matrix& input = inputs[inputs.size() - 1];
        te::testing::fill_normal(input, static_cast<uint32_t>(size), 1.0F);
        double sum = 0.0;
        for (int64_t i = 0; i < size; ++i) {
          sum += std::pow(input.get(i) * inv_scale, 2);
        }
        sums.push_back(sum);
        total += sum;
      }
      const Norms one = norms_of(inputs, inv_scale == 1.0F ? nullptr : &inv_scale, 1);
      const Norms two = norms_of(inputs, &inv_scale, 2);
      EXPECT_EQ(one.norm, two.norm);
      EXPECT_EQ(one.per_tensor, two.per_tensor);
      EXPECT_EQ(one.noop, 0);
      EXPECT_TRUE(is_close(one.norm, norm_of(total), DType::kFloat32)) << one.norm;
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_TRUE(is_close(one.per_tensor[i], norm_of(sums[i]), DType::kFloat32)) << i;
      }
      float reference = 0.0F;
      te::reference::multi_tensor_l2norm(
          {.inputs = inputs.list(), .inv_scale = &inv_scale, .norm = &reference}, {});
      EXPECT_TRUE(is_close(reference, {std::sqrt(total), 0.0}, DType::kFloat32));
    }
  }
}

TEST(MultiTensorL2Norm, RaisesTheFlagForANormThatIsNotFinite) {
  for (const float bad : {kInfinity, std::nanf(""), 2e19F}) {
    Tensors inputs;
    inputs.add(DType::kFloat32, 3);
    inputs.add(DType::kBFloat16, 300);
    EXPECT_EQ(norms_of(inputs, nullptr, 1).noop, 0);
    inputs[1].set(299, bad);
    const Norms norms = norms_of(inputs, nullptr, 1);
    EXPECT_EQ(norms.noop, 1);
    EXPECT_FALSE(std::isfinite(norms.norm));
    EXPECT_TRUE(std::isfinite(norms.per_tensor[0]));
  }
}

TEST(MultiTensorL2Norm, OfNothingIsZero) {
  Tensors nothing;
  EXPECT_EQ(norms_of(nothing, nullptr, 2).norm, 0.0F);
  const float infinite = kInfinity;
  Tensors empty;
  empty.add(DType::kFloat16, 0);
  EXPECT_EQ(norms_of(empty, &infinite, 2).norm, 0.0F);
}

// ---- scales

TEST(MultiTensorScales, AreThoseOfCurrentScaling) {
  const float largest = std::numeric_limits<float>::max();
  const float amax[] = {0.0F, kInfinity, std::nanf(""), 1e-45F, 3.0F, 448.0F, 0.001F};
  const float plain[] = {1.0F, 1.0F, 1.0F, largest, 448.0F / 3.0F, 1.0F, 448.0F / 0.001F};
  const float power[] = {1.0F, 1.0F, 1.0F, 0x1p127F, 128.0F, 1.0F, 262144.0F};
  for (const bool power_of_two : {false, true}) {
    Tensors amaxes, scales, scale_invs;
    for (Tensors* list : {&amaxes, &scales, &scale_invs}) {
      list->add(DType::kFloat32, 7);
      list->add(DType::kFloat32, 0);
      list->add(DType::kFloat32, 1);
    }
    for (int i = 0; i < 7; ++i) {
      amaxes[0].set(i, amax[i]);
    }
    amaxes[2].set(0, 2.0F);
    te::multi_tensor_compute_scale_and_scale_inv({.amaxes = amaxes.list(),
                                                  .scales = scales.list(),
                                                  .scale_invs = scale_invs.list(),
                                                  .fp8_max = 448.0F,
                                                  .power_of_two = power_of_two},
                                                 {});
    for (int i = 0; i < 7; ++i) {
      const float expected = power_of_two ? power[i] : plain[i];
      EXPECT_EQ(scales[0].data<float>()[i], expected) << i;
      EXPECT_EQ(scale_invs[0].data<float>()[i], 1.0F / expected) << i;
    }
    EXPECT_EQ(scales[2].get(0), power_of_two ? 128.0 : 224.0);
    te::multi_tensor_compute_scale_and_scale_inv({.amaxes = amaxes.list(),
                                                  .scales = scales.list(),
                                                  .scale_invs = scale_invs.list(),
                                                  .fp8_max = 448.0F,
                                                  .epsilon = 7.0F},
                                                 {});
    EXPECT_EQ(scales[0].get(0), 64.0);  // 448 / epsilon, for an amax of 0, too
  }
}

TEST(MultiTensorE8M0, IsTheSmallestPowerOfTwoThatFits) {
  Tensors amaxes, codes;
  amaxes.add(DType::kBFloat16, 65536);
  codes.add(DType::kFloat8E8M0, 65536);
  for (int bits = 0; bits < 65536; ++bits) {
    amaxes[0].data<uint16_t>()[bits] = static_cast<uint16_t>(bits);
  }
  te::multi_tensor_compute_scale_inv_e8m0({.amaxes = amaxes.list(), .scale_invs = codes.list()},
                                          kTwoThreads);
  for (int bits = 0; bits < 0x8000; ++bits) {
    const double amax = amaxes[0].get(bits);
    const int code = codes[0].data<uint8_t>()[bits];
    if (std::isnan(amax)) {
      EXPECT_EQ(code, 255);
      continue;
    }
    // 1 / 448 is rounded to FP32, and the product: the bound may be missed by that much.
    const double slack = 1.0 + 2.0 * te::testing::kFloatRoundoff;
    const double value = std::ldexp(1.0, code - 127);
    if (code < 254) {
      EXPECT_LE(amax / 448.0, value * slack) << bits;
    }
    if (code > 0) {
      EXPECT_GT(amax / 448.0 * slack, value / 2) << bits;
    }
  }
}

// ---- errors

template <typename Error, typename Change>
void expect_adam_error(std::initializer_list<const char*> words, const Change& change,
                       AdamCase setting = {}) {
  AdamProblem problem(setting, kSmall);
  AdamProblem before = problem;
  te::MultiTensorAdamArgs args = problem.args();
  change(args, problem);
  expect_error<Error>([&] { te::multi_tensor_adam(args, {}); }, words);
  te::testing::expect_same_adam(problem, before);
}

TEST(MultiTensorErrors, OfAdamNameTheArgumentAndPosition) {
  using Args = te::MultiTensorAdamArgs;
  using Problem = AdamProblem;
  const AdamCase fp8{.kept = AdamKept::kFp8, .param = DType::kFloat8E4M3};
  const AdamCase remainder{.kept = AdamKept::kRemainder, .param = DType::kBFloat16};
  const AdamCase master{.kept = AdamKept::kMaster};
  expect_adam_error<te::ValueError>({"multi_tensor_adam: exp_avgs has 3 tensors and grads 4"},
                                    [](Args& a, Problem&) { a.exp_avgs = a.exp_avgs.first(3); });
  expect_adam_error<te::ValueError>(
      {"masters has 3 tensors"}, [](Args& a, Problem&) { a.masters = a.masters.first(3); }, master);
  expect_adam_error<te::ValueError>({"params[3] has 39 elements and grads[3] 40"},
                                    [](Args&, Problem& p) { p.params.views[3].cols = 39; });
  expect_adam_error<te::ValueError>({"grads[0] has no data"},
                                    [](Args&, Problem& p) { p.grads.views[0].data = nullptr; });
  expect_adam_error<te::TypeError>({"exp_avg_sqs[2] has dtype int32"}, [](Args&, Problem& p) {
    p.exp_avg_sqs.views[2].dtype = DType::kInt32;
  });
  expect_adam_error<te::TypeError>(
      {"params[0] has dtype float8_e4m3"}, [](Args& a, Problem&) { a.fp8_scales = {}; }, fp8);
  expect_adam_error<te::ValueError>(
      {"FP8 params have no masters"}, [](Args& a, Problem&) { a.masters = {}; }, fp8);
  expect_adam_error<te::TypeError>(
      {"params[1] has dtype float32; float8"},
      [](Args&, Problem& p) { p.params.views[1].dtype = DType::kFloat32; }, fp8);
  expect_adam_error<te::ValueError>(
      {"fp8_amaxes has 0 tensors for 4 params"}, [](Args& a, Problem&) { a.fp8_amaxes = {}; }, fp8);
  expect_adam_error<te::ValueError>(
      {"fp8_scale_invs[1] has 2 elements"},
      [](Args&, Problem& p) { p.scale_invs.views[1].cols = 2; }, fp8);
  expect_adam_error<te::TypeError>(
      {"fp8_scales[1] has dtype int32"},
      [](Args&, Problem& p) { p.scales.views[1].dtype = DType::kInt32; }, fp8);
  expect_adam_error<te::TypeError>(
      {"remainders[0] has dtype bfloat16; int16"},
      [](Args&, Problem& p) { p.remainders.views[0].dtype = DType::kBFloat16; }, remainder);
  expect_adam_error<te::TypeError>(
      {"params[0] has dtype float16; bfloat16"},
      [](Args&, Problem& p) { p.params.views[0].dtype = DType::kFloat16; }, remainder);
  expect_adam_error<te::ValueError>(
      {"masters and remainders are both given"},
      [](Args& a, Problem& p) { a.masters = p.params.list(); }, remainder);
  expect_adam_error<te::TypeError>(
      {"masters[0] has dtype bfloat16"},
      [](Args&, Problem& p) { p.masters.views[0].dtype = DType::kBFloat16; }, master);
  expect_adam_error<te::ValueError>({"beta1 is 1"}, [](Args& a, Problem&) { a.beta1 = 1.0; });
  expect_adam_error<te::ValueError>({"beta2 is nan"},
                                    [](Args& a, Problem&) { a.beta2 = std::nan(""); });
  expect_adam_error<te::ValueError>({"epsilon is -1"}, [](Args& a, Problem&) { a.epsilon = -1; });
  expect_adam_error<te::ValueError>({"weight_decay is inf"},
                                    [](Args& a, Problem&) { a.weight_decay = kInfinity; });
  expect_adam_error<te::ValueError>({"lr is nan"}, [](Args& a, Problem&) { a.lr = std::nanf(""); });
  expect_adam_error<te::ValueError>({"step is 0"}, [](Args& a, Problem&) { a.step = 0; });
  expect_adam_error<te::ValueError>(
      {"mode is 2"}, [](Args& a, Problem&) { a.mode = static_cast<te::AdamMode>(2); });
}

TEST(MultiTensorErrors, OfTheOthers) {
  SgdProblem sgd({.has_copy = true}, kSmall);
  const auto sgd_error = [&](const char* words, const auto& change) {
    te::MultiTensorSgdArgs args = sgd.args();
    change(args);
    SgdProblem before = sgd;
    expect_error<te::ValueError>([&] { te::multi_tensor_sgd(args, {}); }, {words});
    te::testing::expect_same_sgd(sgd, before);
  };
  using SgdArgs = te::MultiTensorSgdArgs;
  sgd_error("multi_tensor_sgd: momenta has 1 tensors",
            [](SgdArgs& a) { a.momenta = a.momenta.first(1); });
  sgd_error("copies has 2 tensors", [](SgdArgs& a) { a.copies = a.copies.first(2); });
  sgd_error("momentum is inf", [](SgdArgs& a) { a.momentum = kInfinity; });
  sgd_error("dampening is inf", [](SgdArgs& a) { a.dampening = kInfinity; });
  sgd_error("weight_decay is inf", [](SgdArgs& a) { a.weight_decay = kInfinity; });
  sgd_error("lr is inf", [](SgdArgs& a) { a.lr = kInfinity; });
  sgd_error("scale is inf", [](SgdArgs& a) { a.scale = kInfinity; });
  Tensors floats, bytes;
  floats.add(DType::kFloat32, 3);
  bytes.add(DType::kByte, 3);
  float norm = 0.0F;
  expect_error<te::TypeError>(
      [&] { te::multi_tensor_scale({.inputs = bytes.list(), .outputs = floats.list()}, {}); },
      {"multi_tensor_scale: inputs[0] has dtype byte"});
  expect_error<te::TypeError>(
      [&] { te::multi_tensor_l2norm({.inputs = bytes.list(), .norm = &norm}, {}); },
      {"multi_tensor_l2norm: inputs[0] has dtype byte"});
  expect_error<te::ValueError>([&] { te::multi_tensor_l2norm({.inputs = floats.list()}, {}); },
                               {"norm is null"});
  expect_error<te::TypeError>(
      [&] {
        te::multi_tensor_compute_scale_inv_e8m0(
            {.amaxes = floats.list(), .scale_invs = bytes.list()}, {});
      },
      {"amaxes[0] has dtype float32; bfloat16"});
  const auto scales_error = [&](const char* words, float fp8_max, float epsilon) {
    expect_error<te::ValueError>(
        [&] {
          te::multi_tensor_compute_scale_and_scale_inv({.amaxes = floats.list(),
                                                        .scales = floats.list(),
                                                        .scale_invs = floats.list(),
                                                        .fp8_max = fp8_max,
                                                        .epsilon = epsilon},
                                                       {});
        },
        {words});
  };
  scales_error("fp8_max is 0", 0.0F, 0.0F);
  scales_error("epsilon is -1", 448.0F, -1.0F);
}

}  // namespace
