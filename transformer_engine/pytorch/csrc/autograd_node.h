// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Autograd's nodes, for all releases of torch: newer ones count references inside the node, older
// ones by std::shared_ptr.
#pragma once

#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>
#endif

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace transformer_engine::pytorch {

inline constexpr bool kNodesAreShared =
    std::is_same_v<decltype(std::declval<torch::autograd::Node&>().getptr()),
                   std::shared_ptr<torch::autograd::Node>>;

template <typename NodeType>
using NodePtr =
    std::conditional_t<kNodesAreShared, std::shared_ptr<NodeType>, c10::intrusive_ptr<NodeType>>;

// A chain of nodes may be long: torch's deleter does not recurse along it.
template <typename NodeType, typename... Arguments>
NodePtr<NodeType> new_node(Arguments&&... arguments) {
  if constexpr (kNodesAreShared) {
    return NodePtr<NodeType>(new NodeType(std::forward<Arguments>(arguments)...),
                             [](auto* node) { deleteNode(node); });  // of torch::autograd
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace transformer_engine::pytorch
