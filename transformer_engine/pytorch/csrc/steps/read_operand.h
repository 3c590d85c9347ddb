// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// From quantized Python tensors to operands and back. The protocol: a quantized tensor's or
// storage's `_native_operand()` returns (rowwise, columnwise), each None or
// (data, scale_inv, amax or None, kind, dtype, flags): buffers, and the numbers of a CopyFormat.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <string>

#include "operand.h"

namespace transformer_engine::pytorch {

// Who asks, for messages: "Linear.forward: weight ...".
struct OperandOwner {
  const std::string& label;
  const char* argument;
};

// The operand of a tensor of logical `sizes` on `device`. NotImplementedError for an object without
// the protocol, TypeError or ValueError for buffers that do not fit the sizes: users can replace
// them by anything, and kernels read all their elements. The GIL is held.
Operand read_operand(pybind11::handle object, at::IntArrayRef sizes, const at::Device& device,
                     const OperandOwner& owner);
// One copy, as in the protocol; undefined for None.
OperandCopy read_copy(pybind11::handle parts, bool is_columnwise, at::IntArrayRef sizes,
                      const at::Device& device, const OperandOwner& owner);

// The protocol's tuple of a copy; None for an undefined one.
pybind11::object copy_parts(const OperandCopy& copy);

}  // namespace transformer_engine::pytorch
