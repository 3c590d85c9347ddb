// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/multi_tensor.cu and cuda/multi_tensor_adam.cu: bit for bit the reference,
// norms within derived bounds.
#include <gtest/gtest.h>
#include <transformer_engine/multi_tensor.h>

#include <limits>
#include <list>

#include "cuda/device_mirror.h"
#include "helpers/multi_tensor_problem.h"
#include "reference/multi_tensor.h"

namespace {

namespace te = transformer_engine;
using te::DType;
using te::testing::AdamCase;
using te::testing::AdamKept;
using te::testing::AdamProblem;
using te::testing::DeviceMirror;
using te::testing::Expected;
using te::testing::kHighPrecision;
using te::testing::kIsSlowDevice;
using te::testing::kOnDevice;
using te::testing::Matrix;
using te::testing::same_tensors;
using te::testing::SgdProblem;
using te::testing::Tensors;

const std::vector<int64_t> kSizes = {3, 0, 16, 41};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = 16384;  // of a block

// Lists in device memory, and their results back in host memory.
class OnDevice {
 public:
  // With `skipped` first elements left out, so that the arrays are no longer aligned.
  te::TensorList list(Tensors& tensors, int64_t skipped = 0) {
    std::vector<te::TensorView>& views = views_.emplace_back();
    for (Matrix& matrix : tensors.matrices) {
      te::TensorView view = mirror.view(matrix);
      if (view.cols > skipped) {
        view.data = static_cast<char*>(view.data) + skipped * te::element_size_bytes(view.dtype);
        view.cols -= skipped;
      }
      views.push_back(view);
    }
    return views;
  }
  DeviceMirror mirror;

 private:
  std::list<std::vector<te::TensorView>> views_;
};

void adam_on_device(AdamProblem& problem) {
  OnDevice device;
  te::MultiTensorAdamArgs args = problem.args();
  args.grads = device.list(problem.grads);
  args.params = device.list(problem.params);
  args.exp_avgs = device.list(problem.exp_avgs);
  args.exp_avg_sqs = device.list(problem.exp_avg_sqs);
  args.masters = device.list(problem.masters);
  args.remainders = device.list(problem.remainders);
  args.fp8_scales = device.list(problem.scales);
  args.fp8_amaxes = device.list(problem.amaxes);
  args.fp8_scale_invs = device.list(problem.scale_invs);
  args.device_lr = device.mirror.pointer(args.device_lr, 1);
  args.device_step = device.mirror.pointer(args.device_step, 1);
  args.inv_scale = device.mirror.pointer(args.inv_scale, 1);
  args.noop = device.mirror.pointer(args.noop, 1);
  te::multi_tensor_adam(args, kOnDevice);
  device.mirror.download();
}

void check_adam(const AdamCase& setting, const std::vector<int64_t>& sizes) {
  AdamProblem expected(setting, sizes);
  AdamProblem got = expected;
  te::reference::multi_tensor_adam(expected.args(), {});
  adam_on_device(got);
  te::testing::expect_same_adam(got, expected);
}

TEST(CudaMultiTensorAdam, GivesTheReferencesBitsForEveryCombinationOfTypes) {
  for (const AdamCase& setting : te::testing::adam_cases()) {
    if (kIsSlowDevice && (setting.grad == DType::kFloat16 || setting.moment == DType::kFloat16)) {
      continue;
    }
    SCOPED_TRACE(::testing::Message()
                 << "kept " << static_cast<int>(setting.kept) << " grad "
                 << te::dtype_name(setting.grad) << " param " << te::dtype_name(setting.param)
                 << " moment " << te::dtype_name(setting.moment));
    check_adam(setting, kSizes);
  }
}

TEST(CudaMultiTensorAdam, ManyTensorsAndManyChunks) {
  for (const AdamKept kept :
       {AdamKept::kParam, AdamKept::kMaster, AdamKept::kRemainder, AdamKept::kFp8}) {
    AdamCase setting{.kept = kept, .grad = DType::kBFloat16, .is_capturable = true};
    setting.param = kept == AdamKept::kFp8 ? DType::kFloat8E4M3 : DType::kBFloat16;
    check_adam(setting, std::vector<int64_t>(150, 9));  // more than a table holds
    if (!kIsSlowDevice) {
      check_adam(setting, {5, 2 * kChunk + 8, kChunk, kChunk + 1});
    }
  }
}

TEST(CudaMultiTensorAdam, MisalignedTensors) {
  for (const AdamKept kept : {AdamKept::kParam, AdamKept::kMaster, AdamKept::kRemainder}) {
    const AdamCase setting{.kept = kept, .grad = DType::kFloat16, .param = DType::kBFloat16};
    AdamProblem before(setting, {33});
    AdamProblem expected = before;
    AdamProblem got = before;
    te::reference::multi_tensor_adam(expected.args(), {});
    OnDevice device;
    te::MultiTensorAdamArgs args = got.args();
    args.grads = device.list(got.grads, 1);
    args.params = device.list(got.params, 1);
    args.exp_avgs = device.list(got.exp_avgs, 1);
    args.exp_avg_sqs = device.list(got.exp_avg_sqs, 1);
    args.masters = device.list(got.masters, 1);
    args.remainders = device.list(got.remainders, 1);
    te::multi_tensor_adam(args, kOnDevice);
    device.mirror.download();
    EXPECT_EQ(got.precise_param(0, 0), before.precise_param(0, 0));  // skipped
    for (int64_t i = 1; i < 33; ++i) {
      EXPECT_EQ(got.precise_param(0, i), expected.precise_param(0, i)) << i;
      EXPECT_EQ(got.params[0].get(i), expected.params[0].get(i)) << i;
      EXPECT_EQ(got.exp_avg_sqs[0].get(i), expected.exp_avg_sqs[0].get(i)) << i;
    }
  }
}

TEST(CudaMultiTensorAdam, NoopOfOneWritesNothing) {
  for (const AdamKept kept : {AdamKept::kParam, AdamKept::kFp8}) {
    const DType param = kept == AdamKept::kFp8 ? DType::kFloat8E5M2 : DType::kFloat32;
    AdamProblem before({.kept = kept, .param = param, .is_capturable = true}, kSizes);
    AdamProblem after = before;
    after.noop = 1;
    adam_on_device(after);
    te::testing::expect_same_adam(after, before);
  }
}

TEST(CudaMultiTensorAdam, NaNAndInfinityBesideRemainders) {
  AdamProblem expected({.kept = AdamKept::kRemainder, .param = DType::kBFloat16}, {17});
  expected.grads[0].set(2, std::nanf(""));
  expected.grads[0].set(16, -kInfinity);
  AdamProblem got = expected;
  te::reference::multi_tensor_adam(expected.args(), {});
  adam_on_device(got);
  EXPECT_TRUE(same_tensors(got.params, expected.params));
  EXPECT_TRUE(same_tensors(got.remainders, expected.remainders));
}

TEST(CudaMultiTensorSgd, GivesTheReferencesBits) {
  for (const auto& setting : te::testing::sgd_cases()) {
    for (const auto& sizes : {kSizes, std::vector<int64_t>(100, 9)}) {
      SgdProblem expected(setting, sizes);
      SgdProblem got = expected;
      te::reference::multi_tensor_sgd(expected.args(), {});
      for (int32_t noop : {1, 0}) {
        OnDevice device;
        te::MultiTensorSgdArgs args = got.args();
        args.grads = device.list(got.grads);
        args.params = device.list(got.params);
        args.momenta = device.list(got.momenta);
        args.copies = device.list(got.copies);
        args.noop = device.mirror.pointer(&noop, 1);
        te::multi_tensor_sgd(args, kOnDevice);
        device.mirror.download();
      }
      te::testing::expect_same_sgd(got, expected);
      if (kIsSlowDevice) {
        break;
      }
    }
  }
}

// ---- scale

void scale_on_device(Tensors& inputs, Tensors& outputs, float scale, bool is_device_scale,
                     int32_t* noop, int64_t skipped = 0) {
  OnDevice device;
  te::MultiTensorScaleArgs args{.inputs = device.list(inputs, skipped),
                                .outputs = device.list(outputs, skipped),
                                .scale = is_device_scale ? -1.0F : scale};
  args.device_scale = is_device_scale ? device.mirror.pointer(&scale, 1) : nullptr;
  args.noop = device.mirror.pointer(noop, 1);
  te::multi_tensor_scale(args, kOnDevice);
  device.mirror.download();
}

TEST(CudaMultiTensorScale, GivesTheReferencesBits) {
  for (const DType from : kHighPrecision) {
    for (const DType to : kHighPrecision) {
      for (const int64_t skipped : {0, 1}) {
        Tensors inputs, outputs, expected;
        for (const int64_t size : {int64_t{3}, int64_t{0}, int64_t{41}, kChunk + 9}) {
          if (te::testing::is_too_large(size)) {
            continue;
          }
          for (Tensors* list : {&outputs, &expected}) {
            list->add(to, size);
          }
          inputs.add(from, size);
          fill_random(inputs[inputs.size() - 1], static_cast<uint32_t>(size));
        }
        int32_t noop = 0;
        te::reference::multi_tensor_scale(
            {.inputs = inputs.list(), .outputs = expected.list(), .scale = 0.37F}, {});
        scale_on_device(inputs, outputs, 0.37F, from == to, &noop, skipped);
        for (size_t tensor = 0; tensor < expected.size() && skipped != 0; ++tensor) {
          if (expected[tensor].numel() > 0) {
            expected[tensor].set(0, 0.0F);
            outputs[tensor].set(0, 0.0F);
          }
        }
        EXPECT_EQ(noop, 0);
        EXPECT_TRUE(same_tensors(outputs, expected));
      }
    }
  }
}

TEST(CudaMultiTensorScale, RaisesTheFlagForWhatIsNotFinite) {
  for (const DType dtype : kHighPrecision) {
    for (const float bad : {kInfinity, std::nanf("")}) {
      for (const int64_t at : {0, 20, 42}) {
        Tensors inputs;
        inputs.add(dtype, 5);
        inputs.add(dtype, 43);
        inputs[1].set(at, bad);
        int32_t noop = 0;
        scale_on_device(inputs, inputs, 2.0F, true, &noop);
        EXPECT_EQ(noop, 1);
      }
    }
  }
}

// ---- norm

struct Norms {
  float norm = -1.0F;
  std::vector<float> per_tensor;
  int32_t noop = 0;
};

Norms norms_on_device(Tensors& inputs, const float* inv_scale, int64_t skipped = 0) {
  Norms norms{.per_tensor = std::vector<float>(inputs.size(), -1.0F)};
  OnDevice device;
  te::multi_tensor_l2norm(
      {.inputs = device.list(inputs, skipped),
       .inv_scale = device.mirror.pointer(inv_scale, 1),
       .norm = device.mirror.pointer(&norms.norm, 1),
       .per_tensor = norms.per_tensor.empty()
                         ? nullptr
                         : device.mirror.pointer(norms.per_tensor.data(), inputs.size()),
       .noop = device.mirror.pointer(&norms.noop, 1)},
      kOnDevice);
  device.mirror.download();
  return norms;
}

// A thread adds the terms of its vectors, 256 of them a chunk; then come the trees of a chunk and
// of the chunks.
Expected norm_of(double sum) {
  constexpr int64_t kNormChunk = 65536;
  constexpr te::testing::SumOrder kOrder{.lanes = 256, .run = 8};
  const double relative = kOrder.roundoff(kNormChunk, 2) + te::testing::sum_roundoff(256, 256, 0);
  return {std::sqrt(sum), std::sqrt(sum) * relative};
}

TEST(CudaMultiTensorL2Norm, MatchesTheFP64SumWholeAndPerTensor) {
  for (const DType dtype : kHighPrecision) {
    for (const int64_t skipped : {0, 1}) {
      Tensors inputs;
      double total = 0.0;
      std::vector<double> sums;
      float inv_scale = skipped == 0 ? 1.0F : 0.3F;
      std::vector<int64_t> sizes = {17, 0, 2051, 1};
      if (!kIsSlowDevice) {
        sizes.push_back(131072 + 8192 + 9);
        sizes.insert(sizes.end(), 130, 2);  // more than a table holds
      }
      for (const int64_t size : sizes) {
        inputs.add(dtype, size);
        Matrix& input = inputs[inputs.size() - 1];
        te::testing::fill_normal(input, static_cast<uint32_t>(size), 1.0F);
        double sum = 0.0;
        for (int64_t i = size > skipped ? skipped : 0; i < size; ++i) {
          sum += std::pow(input.get(i) * inv_scale, 2);
        }
        sums.push_back(sum);
        total += sum;
      }
      const Norms norms = norms_on_device(inputs, skipped == 0 ? nullptr : &inv_scale, skipped);
      EXPECT_EQ(norms.noop, 0);
      EXPECT_TRUE(is_close(norms.norm, norm_of(total), DType::kFloat32)) << norms.norm;
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_TRUE(is_close(norms.per_tensor[i], norm_of(sums[i]), DType::kFloat32)) << i;
      }
    }
  }
}

TEST(CudaMultiTensorL2Norm, RaisesTheFlagForANormThatIsNotFinite) {
  for (const float bad : {1.0F, kInfinity, std::nanf(""), 2e19F}) {
    Tensors inputs;
    inputs.add(DType::kFloat32, 3);
    inputs.add(DType::kBFloat16, 300);
    inputs[1].set(299, bad);
    const Norms norms = norms_on_device(inputs, nullptr);
    EXPECT_EQ(norms.noop, bad == 1.0F ? 0 : 1);
    EXPECT_EQ(std::isfinite(norms.norm), bad == 1.0F);
  }
}

TEST(CudaMultiTensorL2Norm, OfNothingIsZero) {
  Tensors nothing;
  EXPECT_EQ(norms_on_device(nothing, nullptr).norm, 0.0F);
  Tensors empty;
  empty.add(DType::kFloat16, 0);
  float inv_scale = kInfinity;  // the mirror writes all back
  const Norms norms = norms_on_device(empty, &inv_scale);
  EXPECT_EQ(norms.norm, 0.0F);
  EXPECT_EQ(norms.per_tensor[0], 0.0F);
}

// ---- scales

TEST(CudaMultiTensorScales, GiveTheReferencesBits) {
  for (const bool power_of_two : {false, true}) {
    Tensors amaxes, scales, scale_invs, expected_scales, expected_scale_invs;
    for (const int64_t size : {300, 0, 1, 17}) {
      for (Tensors* list :
           {&amaxes, &scales, &scale_invs, &expected_scales, &expected_scale_invs}) {
        list->add(DType::kFloat32, size);
      }
      fill_random(amaxes[amaxes.size() - 1], static_cast<uint32_t>(size));
    }
    int64_t i = 0;
    for (const float amax : {0.0F, kInfinity, std::nanf(""), 1e-45F, 1e-6F}) {
      amaxes[0].set(i++, amax);
    }
    te::MultiTensorScalesArgs args{.amaxes = amaxes.list(),
                                   .scales = expected_scales.list(),
                                   .scale_invs = expected_scale_invs.list(),
                                   .epsilon = 1e-5F,
                                   .power_of_two = power_of_two};
    te::reference::multi_tensor_scales(args, {});
    OnDevice device;
    args.amaxes = device.list(amaxes);
    args.scales = device.list(scales);
    args.scale_invs = device.list(scale_invs);
    te::multi_tensor_compute_scale_and_scale_inv(args, kOnDevice);
    device.mirror.download();
    EXPECT_TRUE(same_tensors(scales, expected_scales));
    EXPECT_TRUE(same_tensors(scale_invs, expected_scale_invs));
  }
}

TEST(CudaMultiTensorE8M0, GivesTheReferencesBits) {
  Tensors amaxes, codes, expected;
  for (const int64_t size : {int64_t{3}, kIsSlowDevice ? int64_t{500} : int64_t{65536}}) {
    amaxes.add(DType::kBFloat16, size);
    codes.add(DType::kFloat8E8M0, size);
    expected.add(DType::kFloat8E8M0, size);
    for (int64_t i = 0; i < size; ++i) {
      amaxes[amaxes.size() - 1].data<uint16_t>()[i] = static_cast<uint16_t>(i);
    }
  }
  te::MultiTensorE8M0Args args{.amaxes = amaxes.list(), .scale_invs = expected.list()};
  te::reference::multi_tensor_e8m0(args, {});
  OnDevice device;
  args.amaxes = device.list(amaxes);
  args.scale_invs = device.list(codes);
  te::multi_tensor_compute_scale_inv_e8m0(args, kOnDevice);
  device.mirror.download();
  EXPECT_TRUE(same_tensors(codes, expected));
}

}  // namespace
