// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rotary embeddings as one autograd node each:
//   rotate            t [s, b, h, d], [b, s, h, d] or packed [t, h, d] -> rotated, contiguous
//   split_and_rotate  qkv [s, b, g, q + k + v] or [b, s, g, q + k + v] -> rotated q and k, and v
// The gradient is the transposed rotation, which is the same op: any derivative exists.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace transformer_engine::pytorch {

enum class HeadsFormat { kSbhd, kBshd, kThd };

// What rotations need beside the tensor; all on its device.
struct RopeSettings {
  // FP32 [positions, 1, 1, width], contiguous. key_angles, of split_and_rotate, may be the same
  // tensor.
  at::Tensor angles;
  at::Tensor key_angles;
  at::Tensor start_positions;  // int32 or int64, contiguous; undefined: 0
  at::Tensor cu_seqlens;       // the same; kThd only
  HeadsFormat format = HeadsFormat::kSbhd;
  bool is_interleaved = false;
  bool is_transposed = false;
  int64_t cp_size = 1;
  int64_t cp_rank = 0;
  std::array<int64_t, 3> widths{};  // split_and_rotate: channels of q, k and v in a group
};

// FP32, BF16 or FP16, any strides.
at::Tensor rotate(const at::Tensor& input, const RopeSettings& settings);
std::array<at::Tensor, 3> split_and_rotate(const at::Tensor& mixed, const RopeSettings& settings);

}  // namespace transformer_engine::pytorch
