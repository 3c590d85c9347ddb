// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Quantizers of the formats with one scale per block.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>
#include <transformer_engine/block_scaling.h>
#include <transformer_engine/error.h>

#include <algorithm>
#include <limits>

#include "allocate.h"
#include "quantizer.h"
#include "recipe_state.h"

namespace transformer_engine::pytorch {

namespace {

// 64 bits of torch's default generator: torch.manual_seed makes them repeatable.
uint64_t random_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

// The same from the generator of the input's device, by an operator, which a graph records: each
// replay draws its own.
at::Tensor captured_seed(const at::Tensor& input) {
  at::Tensor seed = new_tensor({1}, at::kLong, input);
  seed.random_(std::numeric_limits<int64_t>::min(), std::optional<int64_t>());
  return seed;
}

}  // namespace

OperandCopy BlockQuantizer::make_copy(at::IntArrayRef sizes, const at::Tensor& like,
                                      bool is_columnwise) const {
  OperandCopy copy;
  copy.format = copy_format(is_columnwise);
  const CopyLayout layout(copy.format, is_columnwise, matrix_sizes(sizes));
  const bool keeps_sizes = copy.format.kind != CopyKind::kNvfp4 && !layout.is_transposed;
  copy.data = keeps_sizes
                  ? new_tensor(sizes, at::kByte, like)
                  : new_tensor({layout.stored_rows, layout.data_row_bytes}, at::kByte, like);
  copy.scale_inv = new_tensor(layout.scale_sizes, scale_type(copy.format), like);
  if (layout.amax_numel != 0) {
    copy.amax = new_tensor({layout.amax_numel}, at::kFloat, like);
  }
  return copy;
}

Operand BlockQuantizer::make_operand(at::IntArrayRef sizes, const at::Tensor& like,
                                     const Usages& usages) const {
  Operand operand;
  operand.sizes = matrix_sizes(sizes);
  const bool one_serves_both = serves_both(copy_format(/*is_columnwise=*/false)) &&
                               serves_both(copy_format(/*is_columnwise=*/true));
  if (usages.rowwise || one_serves_both) {
    operand.rowwise = make_copy(sizes, like, /*is_columnwise=*/false);
  }
  if (usages.columnwise && !one_serves_both) {
    operand.columnwise = make_copy(sizes, like, /*is_columnwise=*/true);
  }
  return operand;
}

BlockQuantizedOutput BlockQuantizer::fused_copies(const Operand& operand) {
  BlockQuantizedOutput output;
  output.rowwise = block_scaled_view(operand.rowwise, /*is_columnwise=*/false, operand.sizes);
  output.columnwise = block_scaled_view(operand.columnwise, /*is_columnwise=*/true, operand.sizes);
  // The views lead to tensors that move: their owner keeps the memory alive.
  output.rowwise.data.framework_tensor = nullptr;
  output.columnwise.data.framework_tensor = nullptr;
  return output;
}

Operand BlockQuantizer::quantize(const at::Tensor& input, const Usages& usages) {
  Operand operand = make_operand(input.sizes(), input, usages);
  update(input, &operand, nullptr);
  return operand;
}

bool BlockQuantizer::requantize(const at::Tensor& input, Operand* operand, const at::Tensor& skip) {
  update(input, operand, float_data(skip, "quantize: skip"));
  return true;
}

Operand BlockQuantizer::quantize_for_user(const at::Tensor& input) {
  Operand operand =
      make_padded_operand(input.sizes(), input, {.rowwise = true, .columnwise = false});
  update(input, &operand, nullptr);
  return operand;
}

Operand BlockQuantizer::make_padded_operand(at::IntArrayRef sizes, const at::Tensor& like,
                                            const Usages& usages) const {
  Operand operand;
  operand.sizes = matrix_sizes(sizes);
  const auto make = [&](bool is_columnwise) {
    OperandCopy copy = make_copy(sizes, like, is_columnwise);
    if (CopyLayout(copy.format, is_columnwise, operand.sizes).has_padded_scales) {
      copy.scale_inv = at::zeros(copy.scale_inv.sizes(), copy.scale_inv.options());
    }
    return copy;
  };
  if (usages.rowwise) {
    operand.rowwise = make(/*is_columnwise=*/false);
  }
  if (usages.columnwise) {
    operand.columnwise = make(/*is_columnwise=*/true);
  }
  return operand;
}

std::optional<int64_t> BlockQuantizer::shard_rows(const Usages& usages) const {
  // As many rows as share a scale, in the copies wanted.
  const MatrixSizes any{.rows = 0, .cols = 0};
  int64_t multiple = 1;
  for (const bool is_columnwise : {false, true}) {
    if (is_columnwise ? usages.columnwise : usages.rowwise) {
      const CopyLayout layout(copy_format(is_columnwise), is_columnwise, any);
      multiple = std::max(multiple, layout.shard_rows);
    }
  }
  return multiple;
}

CopyFormat Float8BlockQuantizer::copy_format(bool /*is_columnwise*/) const {
  return {.kind = block_scaling_dim == 1 ? CopyKind::kFp8Blocks : CopyKind::kFp8Tiles,
          .dtype = dtype,
          .flags = force_pow_2_scales ? CopyFormat::kPowersOfTwo : 0};
}

void Float8BlockQuantizer::update(const at::Tensor& input, Operand* operand, const float* noop) {
  quantize_fp8_blocks(
      {.input = matrix_view(input),
       .rowwise = block_scaled_view(operand->rowwise, /*is_columnwise=*/false, operand->sizes),
       .columnwise = block_scaled_view(operand->columnwise, /*is_columnwise=*/true, operand->sizes),
       .epsilon = amax_epsilon,
       .noop = noop},
      context_for(input));
}

bool Float8BlockQuantizer::prepare_fused(at::IntArrayRef sizes, const at::Tensor& like,
                                         const Usages& usages, Operand* operand,
                                         QuantizedOutput* output) {
  *operand = make_operand(sizes, like, usages);
  output->blocks = fused_copies(*operand);
  output->blocks.epsilon = amax_epsilon;
  return true;
}

CopyFormat MXFP8Quantizer::copy_format(bool /*is_columnwise*/) const {
  return {.kind = CopyKind::kMxfp8,
          .dtype = dtype,
          .flags = with_2d_quantization ? CopyFormat::kSquareTiles : 0};
}

void MXFP8Quantizer::update(const at::Tensor& input, Operand* operand, const float* noop) {
  quantize_mxfp8(
      {.input = matrix_view(input),
       .rowwise = block_scaled_view(operand->rowwise, /*is_columnwise=*/false, operand->sizes),
       .columnwise = block_scaled_view(operand->columnwise, /*is_columnwise=*/true, operand->sizes),
       .has_square_tiles = with_2d_quantization,
       .noop = noop},
      context_for(input));
}

bool MXFP8Quantizer::prepare_fused(at::IntArrayRef sizes, const at::Tensor& like,
                                   const Usages& usages, Operand* operand,
                                   QuantizedOutput* output) {
  *operand = make_operand(sizes, like, usages);
  output->blocks = fused_copies(*operand);
  output->blocks.has_square_tiles = with_2d_quantization;
  return true;
}

CopyFormat NVFP4Quantizer::copy_format(bool is_columnwise) const {
  const auto flag = [](bool is_set, CopyFormat::Flag value) { return is_set ? value : 0; };
  return {.kind = CopyKind::kNvfp4,
          .dtype = DType::kFloat4E2M1,
          .flags = flag(with_2d_quantization, CopyFormat::kSquareTiles) |
                   flag(row_scaled && !is_columnwise, CopyFormat::kRowScaled) |
                   flag(with_rht && is_columnwise, CopyFormat::kHadamard) |
                   flag(e4m3_max == 256, CopyFormat::kScalesTo256)};
}

QuantizeNvfp4Args NVFP4Quantizer::args_for(const at::Tensor& input, const Operand& operand) const {
  QuantizeNvfp4Args args;
  args.input = matrix_view(input);
  args.rowwise = block_scaled_view(operand.rowwise, /*is_columnwise=*/false, operand.sizes);
  args.columnwise = block_scaled_view(operand.columnwise, /*is_columnwise=*/true, operand.sizes);
  if (args.columnwise.is_wanted()) {
    args.columnwise.data.cols = args.input.rows;  // a GEMM reads whole groups, the op knows them
  }
  args.has_square_tiles = with_2d_quantization;
  // The op takes copies of the input's sizes, also where it stores whole transformed groups.
  args.columnwise.data.cols = args.columnwise.is_wanted() ? args.input.rows : 0;
  args.has_hadamard = with_rht && args.columnwise.is_wanted();
  args.hadamard_signs = sign_mask;
  args.four_over_six = four_over_six;
  return args;
}

void NVFP4Quantizer::compute_amax(const at::Tensor& input, Operand* operand,
                                  const float* noop) const {
  QuantizeNvfp4Args args = args_for(input, *operand);
  args.noop = noop;
  args.has_hadamard = args.has_hadamard && with_post_rht_amax;
  compute_nvfp4_amax(args, context_for(input));
}

void NVFP4Quantizer::cast(const at::Tensor& input, Operand* operand, const float* noop) const {
  QuantizeNvfp4Args args = args_for(input, *operand);
  args.is_stochastic = stochastic_rounding;
  at::Tensor seed;
  if (stochastic_rounding && is_graph_capturing()) {
    seed = captured_seed(input);
    args.device_seed = static_cast<const uint64_t*>(seed.const_data_ptr());
  } else if (stochastic_rounding) {
    args.seed = random_seed();
  }
  args.noop = noop;
  quantize_nvfp4(args, context_for(input));
}

Operand NVFP4Quantizer::quantize_shard(const at::Tensor& input, const Usages& usages,
                                       const RankGroup& group) {
  Operand operand = make_operand(input.sizes(), input, usages);
  compute_amax(input, &operand, nullptr);
  for (const OperandCopy* const copy : {&operand.rowwise, &operand.columnwise}) {
    if (copy->amax.defined() && !copy->format.has(CopyFormat::kRowScaled)) {
      group.max(copy->amax).wait();
    }
  }
  cast(input, &operand, nullptr);
  return operand;
}

void NVFP4Quantizer::update(const at::Tensor& input, Operand* operand, const float* noop) {
  compute_amax(input, operand, noop);
  cast(input, operand, noop);
}

}  // namespace transformer_engine::pytorch
