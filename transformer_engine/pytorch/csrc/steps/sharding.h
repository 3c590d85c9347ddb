// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a tensor-parallel group share one linear layer, and what they exchange.
//   column: each holds rows of W; forward needs all of x, the gradient of x is a sum over ranks
//   row:    each holds columns of W; y is a sum over ranks
// With sequence parallelism each rank holds a part of the rows of x (column) or of y (row): what is
// needed whole is gathered, what is a sum is scattered.
#pragma once

#include <memory>
#include <optional>

#include "quantizer.h"
#include "rank_group.h"
#include "recipe_state.h"

namespace transformer_engine::pytorch {

enum class ParallelMode { kNone, kColumn, kRow };

struct Sharding {
  ParallelMode mode = ParallelMode::kNone;
  bool is_sequence_parallel = false;
  std::shared_ptr<const RankGroup> group;  // null with kNone

  bool gathers_input() const { return mode == ParallelMode::kColumn && is_sequence_parallel; }
  bool sums_grad_input() const { return mode == ParallelMode::kColumn; }
  bool sums_output() const { return mode == ParallelMode::kRow; }
  bool gathers_grad_output() const { return mode == ParallelMode::kRow && is_sequence_parallel; }
  int64_t ranks() const { return group == nullptr ? 1 : group->size(); }

  // ValueError, in the name of the forward called `label`, for an input of these sizes whose rows
  // ranks cannot gather, or whose output they cannot scatter.
  void check_input(const std::string& label, at::IntArrayRef sizes) const;
  // Of the output of an input of these sizes; the last one is the layer's own.
  void scale_rows(int64_t* rows) const {
    if (gathers_input()) {
      *rows *= ranks();
    } else if (gathers_grad_output()) {
      *rows /= ranks();
    }
  }
};

// ValueError, in the name of the forward called `label`, where ranks would quantize their parts of
// one tensor with scales of their own: delayed scaling without a reduction of amaxes.
void check_recipe(const Sharding& sharding, const std::string& label, const AutocastState& region);

// Starts adding the ranks' partial results (`partial` may be overwritten). With sequence
// parallelism the result has this rank's rows.
Pending start_sum(const Sharding& sharding, const at::Tensor& partial);

// An operand of all ranks' rows that is being gathered.
class PendingOperand {
 public:
  // Starts gathering the copies that `shard`, the operand of this rank's rows, has.
  PendingOperand(const Operand& shard, const RankGroup& group);
  Operand wait();

 private:
  void gather_copy(const OperandCopy& shard, bool is_columnwise, OperandCopy* whole,
                   const RankGroup& group);
  // Along the first dimension, or along the second.
  void gather_matrix(const at::Tensor& shard, const at::Tensor& whole, int dim,
                     const RankGroup& group);

  struct Part {
    Pending pending;
    at::Tensor target;  // where to copy the gathered parts side by side; undefined: they are there
  };
  Operand whole_;
  MatrixSizes shard_sizes_;
  c10::SmallVector<Part, 4> parts_;
};

// A quantizer of one rank's rows: amaxes that scales depend on are those of all ranks.
class ShardQuantizer final : public Quantizer {
 public:
  ShardQuantizer(Quantizer& quantizer, const RankGroup& group)
      : quantizer_(quantizer), group_(group) {}
  Operand quantize(const at::Tensor& input, const Usages& usages) override {
    return quantizer_.quantize_shard(input, usages, group_);
  }
  bool prepare_fused(at::IntArrayRef sizes, const at::Tensor& like, const Usages& usages,
                     Operand* operand, QuantizedOutput* output) override {
    return quantizer_.prepare_fused(sizes, like, usages, operand, output);
  }

 private:
  Quantizer& quantizer_;
  const RankGroup& group_;
};

// How a tensor that a product reads becomes an operand where each rank has a part of its rows: they
// are quantized, then gathered, where the format lets the parts be joined; else the other way
// round.
class ShardedCast {
 public:
  // `group`: null where there is one part only. `quantizer`: null for high precision. `rows`: of
  // each part. `gathers_plain`: high precision is gathered, whatever the format.
  ShardedCast(const RankGroup* group, Quantizer* quantizer, int64_t rows, const Usages& usages,
              bool gathers_plain = false);

  // For this rank's rows; null leaves them in high precision.
  Quantizer* quantizer() {
    return joins_copies_ ? &*shard_quantizer_ : group_ == nullptr ? quantizer_ : nullptr;
  }
  const Usages& usages() const { return usages_; }
  bool is_sharded() const { return group_ != nullptr; }
  bool joins_copies() const { return joins_copies_; }

  // The operand of all ranks' rows, of the operand of this rank's.
  Operand gather(const Operand& shard) const;
  // Of what was gathered in high precision.
  Operand quantize_whole(const at::Tensor& whole) const;

 private:
  const RankGroup* group_;
  Quantizer* quantizer_;
  Usages usages_;
  bool joins_copies_ = false;
  std::optional<ShardQuantizer> shard_quantizer_;
};

}  // namespace transformer_engine::pytorch
