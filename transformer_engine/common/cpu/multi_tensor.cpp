// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The elements of all tensors, one after another, are divided among the threads evenly, whatever
// the tensors' sizes; each thread walks over the tensors that its share touches. Norms are summed
// in chunks that depend on the sizes alone, so that they do not change with the number of threads.
#include "cpu/multi_tensor.h"

#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/multi_tensor_kernels.h"
#include "cpu/row_work.h"
#include "cpu/shared_maximum.h"
#include "numerics/half.h"
#include "numerics/multi_tensor.h"

namespace transformer_engine::cpu {

namespace {

using numerics::view_at;

constexpr int64_t kNormChunk = 65536;  // elements of one partial sum

Run run_at(const TensorView& view, int64_t offset) {
  return {view.data == nullptr
              ? nullptr
              : static_cast<char*>(view.data) + offset * element_size_bytes(view.dtype),
          view.dtype};
}

// Where each tensor begins, counted in `unit`s of elements, and after the last one the total.
std::vector<int64_t> starts_of(TensorList list, int64_t unit) {
  std::vector<int64_t> starts(list.size() + 1, 0);
  for (size_t i = 0; i < list.size(); ++i) {
    starts[i + 1] = starts[i] + (list[i].numel() + unit - 1) / unit;
  }
  return starts;
}

// Calls body(position, offset, count) for runs that together are all elements.
template <typename Body>
void for_runs(TensorList list, int num_threads, const Body& body) {
  const std::vector<int64_t> starts = starts_of(list, 1);
  parallel_for(starts.back(), kGrainNumel, num_threads, [&](int64_t begin, int64_t end, int) {
    auto position = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                        starts.begin() - 1);
    for (int64_t at = begin; at < end; ++position) {
      const int64_t run_end = std::min(end, starts[position + 1]);
      if (at < run_end) {
        body(position, at - starts[position], run_end - at);
        at = run_end;
      }
    }
  });
}

AdamKind kind_of(const MultiTensorAdamArgs& args) {
  return !args.fp8_scales.empty()   ? kAdamFp8
         : !args.remainders.empty() ? kAdamRemainder
         : !args.masters.empty()    ? kAdamMaster
                                    : kAdamPlain;
}

AdamTypes types_of(const MultiTensorAdamArgs& args, size_t position) {
  const bool has_float_moments = args.exp_avgs[position].dtype == DType::kFloat32 &&
                                 args.exp_avg_sqs[position].dtype == DType::kFloat32;
  const DType grad = args.grads[position].dtype;
  if (!has_float_moments || args.params[position].dtype != grad) {
    return kAdamAnyTypes;
  }
  return grad == DType::kFloat32    ? kAdamFloats
         : grad == DType::kBFloat16 ? kAdamBf16Param
                                    : kAdamAnyTypes;
}

float* float_at(const TensorView& view, int64_t offset) {
  return static_cast<float*>(run_at(view, offset).data);
}

AdamRun adam_run(const MultiTensorAdamArgs& args, size_t position, int64_t offset, int64_t count) {
  const TensorView scale = view_at(args.fp8_scales, position);
  return {
      .grad = run_at(args.grads[position], offset),
      .param = run_at(args.params[position], offset),
      .exp_avg = run_at(args.exp_avgs[position], offset),
      .exp_avg_sq = run_at(args.exp_avg_sqs[position], offset),
      .master = float_at(view_at(args.masters, position), offset),
      .remainder = static_cast<int16_t*>(run_at(view_at(args.remainders, position), offset).data),
      .fp8_scale = scale.data == nullptr ? 1.0F : *static_cast<const float*>(scale.data),
      .inv_scale = args.inv_scale != nullptr ? *args.inv_scale : 1.0F,
      .count = count};
}

// The scales of FP8 parameters, when all of them are written.
void finish_fp8(const MultiTensorAdamArgs& args, const std::vector<SharedMaximum>& amaxes) {
  for (size_t position = 0; position < args.fp8_scales.size(); ++position) {
    if (args.params[position].numel() == 0) {
      continue;
    }
    auto* amax = static_cast<float*>(args.fp8_amaxes[position].data);
    *amax = numerics::max_skip_nan(*amax, amaxes[position].value());
    *static_cast<float*>(args.fp8_scale_invs[position].data) =
        numerics::inverse_scale(*static_cast<const float*>(args.fp8_scales[position].data));
  }
}

}  // namespace

void multi_tensor_scale(const MultiTensorScaleArgs& args, const Context& context) {
  const float scale = args.device_scale != nullptr ? *args.device_scale : args.scale;
  const auto kernel = TE_CPU_KERNELS(multi_tensor_kernels).scale;
  std::atomic<bool> is_finite{true};
  for_runs(args.inputs, context.num_threads, [&](size_t position, int64_t offset, int64_t count) {
    if (!kernel(run_at(args.inputs[position], offset), run_at(args.outputs[position], offset),
                scale, count)) {
      is_finite.store(false, std::memory_order_relaxed);
    }
  });
  if (args.noop != nullptr && !is_finite) {
    *args.noop = 1;
  }
}

void multi_tensor_l2norm(const MultiTensorL2NormArgs& args, const Context& context) {
  const MultiTensorKernels& kernels = TE_CPU_KERNELS(multi_tensor_kernels);
  const float inv_scale = args.inv_scale != nullptr ? *args.inv_scale : 1.0F;
  const std::vector<int64_t> starts = starts_of(args.inputs, kNormChunk);
  std::vector<float> parts(static_cast<size_t>(starts.back()));
  const auto sum_chunks = [&](int64_t begin, int64_t end, int) {
    auto position = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                        starts.begin() - 1);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      while (chunk >= starts[position + 1]) {
        ++position;
      }
      const TensorView& input = args.inputs[position];
      const int64_t offset = (chunk - starts[position]) * kNormChunk;
      parts[static_cast<size_t>(chunk)] = kernels.sum_of_squares[high_precision_index(input.dtype)](
          run_at(input, offset).data, inv_scale, std::min(kNormChunk, input.numel() - offset));
    }
  };
  parallel_for(starts.back(), 1, context.num_threads, sum_chunks);
  double total = 0.0;
  for (size_t position = 0; position < args.inputs.size(); ++position) {
    double sum = 0.0;
    for (int64_t chunk = starts[position]; chunk < starts[position + 1]; ++chunk) {
      sum += parts[static_cast<size_t>(chunk)];
    }
    total += sum;
    if (args.per_tensor != nullptr) {
      args.per_tensor[position] = static_cast<float>(std::sqrt(sum));
    }
  }
  *args.norm = static_cast<float>(std::sqrt(total));
  if (args.noop != nullptr && !numerics::is_finite(*args.norm)) {
    *args.noop = 1;
  }
}

void multi_tensor_adam(const MultiTensorAdamArgs& args, const Context& context) {
  if (args.noop != nullptr && *args.noop == 1) {
    return;
  }
  const auto numbers = numerics::adam_numbers(
      numerics::adam_settings(args), args.device_lr != nullptr ? *args.device_lr : args.lr,
      args.device_step != nullptr ? *args.device_step : args.step);
  const AdamKind kind = kind_of(args);
  const auto& kernels = TE_CPU_KERNELS(multi_tensor_kernels).adam[kind];
  const int mode = args.mode == AdamMode::kDecoupled ? 1 : 0;
  std::vector<SharedMaximum> amaxes(args.fp8_scales.size());
  for_runs(args.grads, context.num_threads, [&](size_t position, int64_t offset, int64_t count) {
    const float amax =
        kernels[types_of(args, position)][mode](adam_run(args, position, offset, count), numbers);
    if (kind == kAdamFp8) {
      amaxes[position].add(amax);
    }
  });
  finish_fp8(args, amaxes);
}

void multi_tensor_sgd(const MultiTensorSgdArgs& args, const Context& context) {
  if (args.noop != nullptr && *args.noop != 0) {
    return;
  }
  const auto numbers = numerics::sgd_numbers(args);
  const auto rule = numerics::sgd_rule(args);
  const auto& kernels = TE_CPU_KERNELS(multi_tensor_kernels).sgd;
  for_runs(args.grads, context.num_threads, [&](size_t position, int64_t offset, int64_t count) {
    const DType param = args.params[position].dtype;
    kernels[io_index(param, args.grads[position].dtype, args.momenta[position].dtype)](
        {.grad = run_at(args.grads[position], offset),
         .param = run_at(args.params[position], offset),
         .momentum = run_at(args.momenta[position], offset),
         .copy = run_at(view_at(args.copies, position), offset),
         .count = count},
        numbers, rule);
  });
}

// Scales are few and small: one thread.
void multi_tensor_scales(const MultiTensorScalesArgs& args, const Context&) {
  const auto rule = numerics::scaling_rule(args);
  for (size_t position = 0; position < args.amaxes.size(); ++position) {
    const auto* amax = static_cast<const float*>(args.amaxes[position].data);
    auto* scale = static_cast<float*>(args.scales[position].data);
    auto* scale_inv = static_cast<float*>(args.scale_invs[position].data);
    for (int64_t i = 0; i < args.amaxes[position].numel(); ++i) {
      scale[i] = numerics::current_scaling_scale(amax[i], rule);
      scale_inv[i] = numerics::inverse_scale(scale[i]);
    }
  }
}

void multi_tensor_e8m0(const MultiTensorE8M0Args& args, const Context& context) {
  for_runs(args.amaxes, context.num_threads, [&](size_t position, int64_t offset, int64_t count) {
    const auto* amax = static_cast<const uint16_t*>(run_at(args.amaxes[position], offset).data);
    auto* code = static_cast<uint8_t*>(run_at(args.scale_invs[position], offset).data);
    for (int64_t i = 0; i < count; ++i) {
      code[i] =
          numerics::e8m0_from_amax(numerics::float_from_bf16(amax[i]), numerics::kE8M0ScaledMax);
    }
  });
}

}  // namespace transformer_engine::cpu
