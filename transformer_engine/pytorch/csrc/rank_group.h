// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A process group as steps use it: torch.distributed's collectives, called without Python. NCCL
// runs them on GPUs, gloo on CPUs.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace transformer_engine::pytorch {

// The result of a collective that may still be running.
class Pending {
 public:
  Pending() = default;
  Pending(at::Tensor result, std::function<void()> wait)
      : result_(std::move(result)), wait_(std::move(wait)) {}
  bool is_defined() const { return result_.defined(); }

  // The result, once it is there; on CUDA the current stream waits, not the host. RuntimeError when
  // the collective failed.
  const at::Tensor& wait() {
    if (wait_) {
      std::exchange(wait_, nullptr)();
    }
    return result_;
  }

 private:
  at::Tensor result_;
  std::function<void()> wait_;
};

class RankGroup {
 public:
  // `owner` for messages: "Linear". TypeError unless `group` is a ProcessGroup. The GIL is held.
  RankGroup(std::string owner, pybind11::handle group);
  ~RankGroup();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const std::string& owner() const { return owner_; }

  // All ranks' [n, ...] along the first dimension, in rank order: [size * n, ...]. All tensors are
  // contiguous, here and below.
  Pending gather(const at::Tensor& shard) const;
  // The same into `whole`.
  Pending gather_into(const at::Tensor& whole, const at::Tensor& shard) const;
  // The sum of all ranks' [size * n, ...]; the rows of this rank: [n, ...].
  Pending sum_and_scatter(const at::Tensor& whole) const;
  // In place, over all ranks.
  Pending sum(const at::Tensor& tensor) const;
  Pending max(const at::Tensor& tensor) const;

 private:
  struct State;
  Pending reduce(const char* name, const at::Tensor& tensor, int operation) const;

  std::string owner_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::unique_ptr<State> state_;
};

}  // namespace transformer_engine::pytorch
