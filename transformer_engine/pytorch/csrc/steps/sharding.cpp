// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/sharding.h"

#include <transformer_engine/error.h>

#include "allocate.h"

namespace transformer_engine::pytorch {

void Sharding::check_input(const std::string& label, at::IntArrayRef sizes) const {
  if (!is_sequence_parallel || mode == ParallelMode::kNone) {
    return;
  }
  TE_CHECK(sizes.size() >= 2, label, ": inp has shape ", sizes,
           "; with sequence_parallel=True a first dimension to share is required.");
  TE_CHECK(!gathers_grad_output() || sizes[0] % ranks() == 0, label, ": inp has shape ", sizes,
           "; with sequence_parallel=True the first dimension must be a multiple of the ", ranks(),
           " tensor-parallel ranks. Pad the sequence.");
}

void check_recipe(const Sharding& sharding, const std::string& label, const AutocastState& region) {
  TE_CHECK(!region.enabled || !sharding.is_sequence_parallel || !region.recipe->is_delayed ||
               region.reduces_amax,
           label, ": ", region.recipe->name,
           " with sequence_parallel=True does not reduce amaxes, so that ranks would quantize "
           "their rows with scales of their own; recipe.reduce_amax=True and an "
           "amax_reduction_group of the tensor-parallel ranks are required.");
}

Pending start_sum(const Sharding& sharding, const at::Tensor& partial) {
  return sharding.is_sequence_parallel ? sharding.group->sum_and_scatter(partial)
                                       : sharding.group->sum(partial);
}

PendingOperand::PendingOperand(const Operand& shard, const RankGroup& group)
    : shard_sizes_(shard.sizes) {
  whole_.sizes = {.rows = shard.sizes.rows * group.size(), .cols = shard.sizes.cols};
  gather_copy(shard.rowwise, /*is_columnwise=*/false, &whole_.rowwise, group);
  gather_copy(shard.columnwise, /*is_columnwise=*/true, &whole_.columnwise, group);
}

void PendingOperand::gather_matrix(const at::Tensor& shard, const at::Tensor& whole, int dim,
                                   const RankGroup& group) {
  if (dim == 0) {
    parts_.push_back({group.gather_into(whole, shard), {}});
  } else {
    parts_.push_back({group.gather(shard.contiguous()), whole});
  }
}

void PendingOperand::gather_copy(const OperandCopy& shard, bool is_columnwise, OperandCopy* whole,
                                 const RankGroup& group) {
  if (!shard.is_defined()) {
    return;
  }
  whole->format = shard.format;
  if (shard.format.kind == CopyKind::kPlain) {
    whole->data =
        new_tensor({whole_.sizes.rows, whole_.sizes.cols}, shard.data.scalar_type(), shard.data);
    gather_matrix(shard.data.view({shard_sizes_.rows, shard_sizes_.cols}), whole->data, 0, group);
    return;
  }
  const CopyLayout from(shard.format, is_columnwise, shard_sizes_);
  const CopyLayout to(shard.format, is_columnwise, whole_.sizes);
  whole->data = new_tensor({to.stored_rows, to.data_row_bytes}, at::kByte, shard.data);
  gather_matrix(shard.data.view({from.stored_rows, from.data_row_bytes}), whole->data,
                from.is_transposed ? 1 : 0, group);
  if (shard.format.kind == CopyKind::kTensor) {
    whole->scale_inv = shard.scale_inv;  // one for all ranks
    return;
  }
  whole->scale_inv = new_tensor(to.scale_sizes, shard.scale_inv.scalar_type(), shard.scale_inv);
  const int dim = from.row_scales_dim;
  gather_matrix(shard.scale_inv.narrow(dim, 0, from.row_scales),
                whole->scale_inv.narrow(dim, 0, from.row_scales * group.size()), dim, group);
  if (shard.format.has(CopyFormat::kRowScaled)) {
    whole->amax = new_tensor({to.amax_numel}, at::kFloat, shard.amax);
    gather_matrix(shard.amax, whole->amax, 0, group);
  } else {
    whole->amax = shard.amax;
  }
}

Operand PendingOperand::wait() {
  for (Part& part : parts_) {
    const at::Tensor gathered = part.pending.wait();
    if (part.target.defined()) {  // [ranks * rows, cols] -> [rows, ranks * cols]
      const int64_t rows = part.target.size(0);
      const int64_t ranks = rows == 0 ? 1 : gathered.size(0) / rows;
      part.target.view({rows, ranks, gathered.size(1)})
          .copy_(gathered.view({ranks, rows, gathered.size(1)}).transpose(0, 1));
    }
  }
  return std::move(whole_);
}

ShardedCast::ShardedCast(const RankGroup* group, Quantizer* quantizer, int64_t rows,
                         const Usages& usages, bool gathers_plain)
    : group_(group), quantizer_(quantizer), usages_(usages) {
  if (group == nullptr || quantizer == nullptr || gathers_plain) {
    return;
  }
  const std::optional<int64_t> multiple = quantizer->shard_rows(usages);
  joins_copies_ = multiple.has_value() && rows % *multiple == 0;
  if (joins_copies_) {
    shard_quantizer_.emplace(*quantizer, *group);
  }
}

Operand ShardedCast::quantize_whole(const at::Tensor& whole) const {
  return quantizer_ == nullptr ? Operand::high_precision(whole)
                               : quantizer_->quantize(whole, usages_);
}

Operand ShardedCast::gather(const Operand& shard) const {
  Operand whole = PendingOperand(shard, *group_).wait();
  return joins_copies_ ? std::move(whole) : quantize_whole(whole.plain());
}

}  // namespace transformer_engine::pytorch
