// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "rank_group.h"

#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <vector>

#include "allocate.h"

// torch 2.13 gives two collectives new names, which releases before it do not have.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// Runs `body`; failures of the communication become an error that names the collective.
template <typename Body>
auto naming(const RankGroup& group, const char* collective, const Body& body) {
  try {
    return body();
  } catch (const py::error_already_set&) {
    throw;  // a process group written in Python
  } catch (const std::exception& error) {
    throw RuntimeError(concat(group.owner(), ": ", collective,
                              " over the tensor-parallel group of ", group.size(),
                              " ranks failed on rank ", group.rank(), ": ", error.what(),
                              ". Every rank must make the same call with tensors of one shape; "
                              "look for an error on another rank, or let torch compare the calls: "
                              "TORCH_DISTRIBUTED_DEBUG=DETAIL."));
  }
}

}  // namespace

struct RankGroup::State {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

RankGroup::RankGroup(std::string owner, py::handle group) : owner_(std::move(owner)) {
  const py::object type = py::module_::import("torch.distributed").attr("ProcessGroup");
  TE_CHECK_TYPE(py::isinstance(group, type), owner_, ": tp_group has type ",
                Py_TYPE(group.ptr())->tp_name, "; a torch.distributed.ProcessGroup is required.");
  state_ =
      std::make_unique<State>(State{.group = group.cast<c10::intrusive_ptr<c10d::ProcessGroup>>()});
  rank_ = state_->group->getRank();
  size_ = state_->group->getSize();
}

RankGroup::~RankGroup() = default;

namespace {

// `kept` lives until the collective has read it.
Pending pending(const RankGroup& group, const char* collective, at::Tensor result, at::Tensor kept,
                Work work) {
  return {std::move(result), [&group, collective, kept = std::move(kept), work = std::move(work)] {
            naming(group, collective, [&] { return work == nullptr || work->wait(); });
          }};
}

c10::SmallVector<int64_t, 4> with_rows(const at::Tensor& tensor, int64_t rows) {
  c10::SmallVector<int64_t, 4> sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[0] = rows;
  return sizes;
}

}  // namespace

Pending RankGroup::gather_into(const at::Tensor& whole, const at::Tensor& shard) const {
  constexpr const char* kName = "all-gather";
  at::Tensor output = whole;
  at::Tensor input = shard;
  Work work = naming(*this, kName, [&] {
    return state_->group->_allgather_base(output, input, c10d::AllgatherOptions());
  });
  return pending(*this, kName, whole, shard, std::move(work));
}

Pending RankGroup::gather(const at::Tensor& shard) const {
  return gather_into(
      new_tensor(with_rows(shard, shard.size(0) * size_), shard.scalar_type(), shard), shard);
}

Pending RankGroup::sum_and_scatter(const at::Tensor& whole) const {
  constexpr const char* kName = "reduce-scatter";
  at::Tensor output =
      new_tensor(with_rows(whole, whole.size(0) / size_), whole.scalar_type(), whole);
  at::Tensor input = whole;
  Work work = naming(*this, kName, [&] {
    return state_->group->_reduce_scatter_base(output, input, c10d::ReduceScatterOptions());
  });
  return pending(*this, kName, output, whole, std::move(work));
}

Pending RankGroup::reduce(const char* name, const at::Tensor& tensor, int operation) const {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(operation);
  Work work = naming(*this, name, [&] { return state_->group->allreduce(tensors, options); });
  return pending(*this, name, tensor, {}, std::move(work));
}

Pending RankGroup::sum(const at::Tensor& tensor) const {
  return reduce("all-reduce", tensor, c10d::ReduceOp::SUM);
}

Pending RankGroup::max(const at::Tensor& tensor) const {
  return reduce("all-reduce of amax", tensor, c10d::ReduceOp::MAX);
}

}  // namespace transformer_engine::pytorch
