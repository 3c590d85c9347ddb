// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/rope_part.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <transformer_engine/error.h>
#include <transformer_engine/rope.h>

#include "allocate.h"
#include "autograd_node.h"
#include "steps/linear_part.h"
#include "steps/node_support.h"
#include "steps/saved_operand.h"
#include "views.h"

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace transformer_engine::pytorch {

namespace {

RopeIndices indices_of(const at::Tensor& tensor) {
  RopeIndices indices;
  if (tensor.defined() && tensor.scalar_type() == at::kInt) {
    indices.narrow = static_cast<const int32_t*>(tensor.data_ptr());
  } else if (tensor.defined()) {
    indices.wide = static_cast<const int64_t*>(tensor.data_ptr());
  }
  return indices;
}

RopeTable table_of(const at::Tensor& angles) {
  return {.angles = static_cast<const float*>(angles.data_ptr()),
          .rows = angles.size(0),
          .width = angles.size(-1)};
}

// Everything but the parts, for tokens laid out as in `tensor`.
RopeArgs arguments_for(const at::Tensor& tensor, const RopeSettings& settings) {
  const bool is_batch_first = settings.format == HeadsFormat::kBshd;
  const bool is_packed = settings.format == HeadsFormat::kThd;
  RopeArgs args;
  args.dtype = dtype_of(tensor.scalar_type());
  args.length = tensor.size(is_batch_first ? 1 : 0);
  args.batch = is_packed ? 1 : tensor.size(is_batch_first ? 0 : 1);
  args.is_interleaved = settings.is_interleaved;
  args.is_transposed = settings.is_transposed;
  args.placement = {
      .start_positions = indices_of(settings.start_positions),
      .cu_seqlens = indices_of(settings.cu_seqlens),
      .sequences = settings.cu_seqlens.defined() ? settings.cu_seqlens.size(0) - 1 : 0,
      .cp_size = settings.cp_size,
      .cp_rank = settings.cp_rank};
  return args;
}

// Groups of a tensor lie `heads` heads apart, and begin at element `first` of a token.
RopeTensor heads_of(const at::Tensor& tensor, HeadsFormat format, int64_t heads,
                    int64_t first = 0) {
  const int64_t head_stride = tensor.stride(-2);
  const bool is_batch_first = format == HeadsFormat::kBshd;
  return {.data = static_cast<char*>(tensor.data_ptr()) +
                  (tensor.numel() == 0 ? 0 : first * tensor.element_size()),
          .position_stride = tensor.stride(is_batch_first ? 1 : 0),
          .batch_stride = format == HeadsFormat::kThd ? 0 : tensor.stride(is_batch_first ? 0 : 1),
          .group_stride = heads * head_stride,
          .head_stride = head_stride};
}

// Channels side by side, plain values.
at::Tensor readable(const at::Tensor& tensor) {
  return is_python_tensor(tensor) || tensor.is_neg() || tensor.stride(-1) != 1 ? as_plain(tensor)
                                                                               : tensor;
}

void rotate_into(const at::Tensor& input, const at::Tensor& output, const RopeSettings& settings) {
  RopeArgs args = arguments_for(input, settings);
  args.parts[0] = {.input = heads_of(input, settings.format, 0),
                   .output = heads_of(output, settings.format, 0),
                   .table = table_of(settings.angles),
                   .groups = 1,
                   .heads = input.size(-2),
                   .channels = input.size(-1)};
  rope(args, context_for(input));
}

// `mixed` is [.., groups, q + k + v], `parts` are [.., groups * heads, channels]: the parts are
// taken out of it, or, `is_merge`, put into it.
void split_or_merge(const at::Tensor& mixed, const std::array<at::Tensor, 3>& parts,
                    const RopeSettings& settings, bool is_merge) {
  RopeArgs args = arguments_for(mixed, settings);
  args.part_count = 3;
  int64_t first = 0;
  for (int i = 0; i < 3; ++i) {
    const int64_t channels = i == 2 ? settings.widths[2] : settings.widths[1];
    const int64_t heads = i == 0 ? settings.widths[0] / channels : 1;
    // A group of `mixed` is one of its heads; what is a head here lies `channels` apart there.
    RopeTensor whole = heads_of(mixed, settings.format, 1, first);
    whole.head_stride = channels;
    const RopeTensor part = heads_of(parts[i], settings.format, heads);
    args.parts[i] = {
        .input = is_merge ? part : whole,
        .output = is_merge ? whole : part,
        .table = i == 2 ? RopeTable{} : table_of(i == 0 ? settings.angles : settings.key_angles),
        .groups = mixed.size(2),
        .heads = heads,
        .channels = channels};
    first += settings.widths[i];
  }
  rope(args, context_for(mixed));
}

// Settings kept for backward, through autograd's own saved variables: hooks and version checks act
// on them.
class SavedSettings {
 public:
  void save(const RopeSettings& settings) {
    settings_ = settings;
    for (size_t i = 0; i < kCount; ++i) {
      at::Tensor& tensor = settings_.*kTensors[i];
      is_saved_[i] = tensor.defined();
      if (is_saved_[i]) {
        saved_[i] = SavedVariable(tensor, false);
        tensor.reset();
      }
    }
  }
  // Of the opposite rotation.
  RopeSettings unpack_transposed() const {
    RopeSettings settings = settings_;
    for (size_t i = 0; i < kCount; ++i) {
      if (is_saved_[i]) {
        settings.*kTensors[i] = unpack_saved(saved_[i]);
      }
    }
    settings.is_transposed = !settings.is_transposed;
    return settings;
  }
  void reset() {
    for (SavedVariable& saved : saved_) {
      saved.reset_data();
    }
  }

 private:
  static constexpr size_t kCount = 4;
  static constexpr at::Tensor RopeSettings::* kTensors[kCount] = {
      &RopeSettings::angles, &RopeSettings::key_angles, &RopeSettings::start_positions,
      &RopeSettings::cu_seqlens};
  RopeSettings settings_;
  SavedVariable saved_[kCount];
  bool is_saved_[kCount] = {};
};

// Edge: the tensor that was rotated.
struct RopeNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    settings.reset();
  }
  std::string name() const override { return "RotaryEmbeddingBackward"; }

  SavedSettings settings;
};

variable_list RopeNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(1);
  if (!is_without_gradient(grads)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    result[0] = rotate(readable(grads[0]), settings.unpack_transposed());
  }
  return result;
}

// Edge: the mixed tensor. Gradients of q, k and v arrive, some perhaps undefined.
struct SplitRopeNode : public torch::autograd::Node {
  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    settings.reset();
  }
  std::string name() const override { return "SplitRotaryEmbeddingBackward"; }

  SavedSettings settings;
  c10::SmallVector<int64_t, 4> sizes;  // of the mixed tensor
};

// [.., groups * heads, channels], zeros where no gradient arrived.
std::array<at::Tensor, 3> part_gradients(const variable_list& grads, at::IntArrayRef sizes,
                                         const std::array<int64_t, 3>& widths) {
  const at::Tensor& given = grads[0].defined()   ? grads[0]
                            : grads[1].defined() ? grads[1]
                                                 : grads[2];
  std::array<at::Tensor, 3> result;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t channels = i == 2 ? widths[2] : widths[1];
    const int64_t heads = i == 0 ? sizes[2] * widths[0] / channels : sizes[2];
    result[i] = grads[i].defined() ? readable(grads[i])
                                   : at::zeros({sizes[0], sizes[1], heads, channels},
                                               given.options().requires_grad(false));
  }
  return result;
}

// The same of operators that autograd records, for derivatives of the gradient.
at::Tensor merge_recorded(const std::array<at::Tensor, 3>& parts, at::IntArrayRef sizes,
                          const RopeSettings& settings) {
  RopeSettings key = settings;
  key.angles = settings.key_angles;
  const at::Tensor rotated[] = {rotate(parts[0], settings), rotate(parts[1], key), parts[2]};
  std::vector<at::Tensor> mixed;
  for (size_t i = 0; i < 3; ++i) {
    mixed.push_back(rotated[i].reshape({sizes[0], sizes[1], sizes[2], settings.widths[i]}));
  }
  return at::cat(mixed, -1);
}

variable_list SplitRopeNode::apply(variable_list&& grads) {
  refuse_transformed(name(), grads);
  variable_list result(1);
  if (is_without_gradient(grads)) {
    return result;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const RopeSettings transposed = settings.unpack_transposed();
  const auto parts = part_gradients(grads, sizes, transposed.widths);
  if (at::GradMode::is_enabled()) {
    result[0] = merge_recorded(parts, sizes, transposed);
  } else {
    const PlainOperators plain;
    result[0] = new_tensor(sizes, parts[0].scalar_type(), parts[0]);
    split_or_merge(result[0], parts, transposed, /*is_merge=*/true);
  }
  return result;
}

}  // namespace

at::Tensor rotate(const at::Tensor& tensor, const RopeSettings& settings) {
  EdgeList edges;
  edges.add(tensor);
  const bool needs_node = edges.are_recorded();
  at::Tensor output;
  {
    const PlainOperators plain;
    const at::Tensor input = readable(tensor);
    output = new_tensor(input.sizes(), input.scalar_type(), input);
    rotate_into(input, output, settings);
  }
  if (needs_node) {
    auto node = new_node<RopeNode>();
    node->set_next_edges(edges.take());
    node->settings.save(settings);
    attach_output(output, node);
  }
  return output;
}

std::array<at::Tensor, 3> split_and_rotate(const at::Tensor& tensor, const RopeSettings& settings) {
  EdgeList edges;
  edges.add(tensor);
  const bool needs_node = edges.are_recorded();
  std::array<at::Tensor, 3> parts;
  {
    const PlainOperators plain;
    const at::Tensor mixed = readable(tensor);
    const auto sizes = mixed.sizes();
    const auto& [query, key, value] = settings.widths;
    parts = {
        new_tensor({sizes[0], sizes[1], sizes[2] * (query / key), key}, mixed.scalar_type(), mixed),
        new_tensor({sizes[0], sizes[1], sizes[2], key}, mixed.scalar_type(), mixed),
        new_tensor({sizes[0], sizes[1], sizes[2], value}, mixed.scalar_type(), mixed)};
    split_or_merge(mixed, parts, settings, /*is_merge=*/false);
  }
  if (needs_node) {
    auto node = new_node<SplitRopeNode>();
    node->set_next_edges(edges.take());
    node->settings.save(settings);
    node->sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    for (const at::Tensor& part : parts) {
      attach_output(part, node);
    }
  }
  return parts;
}

}  // namespace transformer_engine::pytorch
