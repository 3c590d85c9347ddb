// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Device copies of a test's host memory. Arguments are written with host pointers; the mirror hands
// out device pointers for them and copies everything back, so that the same test runs in the
// emulator, where each copy is a heap block of exactly its size, and on a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <transformer_engine/error.h>
#include <transformer_engine/gemm.h>
#include <transformer_engine/types.h>

#include <map>

#include "helpers/block_scaled.h"
#include "helpers/matrix.h"

namespace transformer_engine::testing {

class DeviceMirror {
 public:
  DeviceMirror() = default;
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;
  ~DeviceMirror() {
    for (const auto& [host, copy] : copies_) {
      cudaFree(copy.device);
    }
  }

  // The device copy of `count` elements at `host`; null for null. Asked twice, the same copy.
  template <typename T>
  T* pointer(T* host, size_t count) {
    if (host == nullptr) {
      return nullptr;
    }
    void* key = const_cast<void*>(static_cast<const void*>(host));
    const auto [entry, is_new] = copies_.try_emplace(key, Copy{nullptr, count * sizeof(T)});
    if (is_new) {
      must(cudaMalloc(&entry->second.device, entry->second.bytes));
      must(cudaMemcpyAsync(entry->second.device, host, entry->second.bytes, cudaMemcpyHostToDevice,
                           nullptr));
    }
    return static_cast<T*>(entry->second.device);
  }
  TensorView view(Matrix& matrix) {
    TensorView view = matrix.view();
    view.data =
        matrix.numel() == 0 ? nullptr : pointer(matrix.data<uint8_t>(), matrix.size_bytes());
    return view;
  }
  // Of a view of host memory, by its extent; one that is absent stays as it is.
  TensorView view(TensorView host) {
    const auto bytes = static_cast<size_t>(host.rows * row_size_bytes(host.dtype, host.cols));
    host.data = pointer(static_cast<uint8_t*>(host.data), bytes);
    return host;
  }
  // Of the scales of a stored matrix of this shape.
  BlockScales view(BlockScales host, int64_t rows, int64_t cols) {
    if (rows != 0 && cols != 0 && host.is_wanted()) {
      const int64_t count = host.index(rows - 1, cols - 1) + 1;
      host.data = pointer(static_cast<uint8_t*>(host.data),
                          static_cast<size_t>(count * element_size_bytes(host.dtype)));
      host.amax = pointer(host.amax, static_cast<size_t>(host.is_row_scaled ? rows : 1));
    }
    return host;
  }
  BlockScaledMatrix view(const BlockScaledMatrix& host) {
    return {.data = view(host.data), .scales = view(host.scales, host.data.rows, host.data.cols)};
  }
  GemmOperand view(GemmOperand host) {
    host.scales = view(host.scales, host.matrix.rows, host.matrix.cols);
    host.scale_inv = pointer(host.scale_inv, 1);
    host.matrix = view(host.matrix);
    return host;
  }
  GemmArgs view(GemmArgs host) {
    host.a = view(host.a);
    host.b = view(host.b);
    host.bias = view(host.bias);
    host.pre_epilogue = view(host.pre_epilogue);
    host.d = view(host.d);
    return host;
  }
  QuantizedOutput view(const QuantizedOutput& host) {
    return {.data = view(host.data),
            .data_transpose = view(host.data_transpose),
            .scale = pointer(host.scale, 1),
            .scale_inv = pointer(host.scale_inv, 1),
            .amax = pointer(host.amax, 1),
            .blocks = {.rowwise = view(host.blocks.rowwise),
                       .columnwise = view(host.blocks.columnwise),
                       .epsilon = host.blocks.epsilon,
                       .has_square_tiles = host.blocks.has_square_tiles}};
  }
  // Of an argument that may be absent. `matrix` owns the memory behind the view.
  TensorView view_if(bool is_wanted, Matrix& matrix) {
    return is_wanted ? view(matrix) : TensorView{};
  }

  BlockScaledMatrix view(BlockCopy& copy) {
    BlockScaledMatrix matrix = copy.view();
    matrix.data = view(copy.data());
    matrix.scales.data = view(copy.scales()).data;
    return matrix;
  }
  BlockScaledMatrix view_if(bool is_wanted, BlockCopy& copy) {
    return is_wanted ? view(copy) : BlockScaledMatrix{};
  }

  // Copies everything back once the device is done.
  void download() {
    must(cudaDeviceSynchronize());
    for (const auto& [host, copy] : copies_) {
      must(cudaMemcpyAsync(host, copy.device, copy.bytes, cudaMemcpyDeviceToHost, nullptr));
    }
    must(cudaDeviceSynchronize());
  }

 private:
  struct Copy {
    void* device;
    size_t bytes;
  };
  static void must(cudaError_t status) {
    TE_CHECK_AS(RuntimeError, status == cudaSuccess, "DeviceMirror: ", cudaGetErrorString(status));
  }
  std::map<void*, Copy> copies_;
};

// The race detector makes the emulator 50 times slower: there, tests take small problems alone.
#if defined(TE_SLOW_DEVICE)
inline constexpr bool kIsSlowDevice = true;
#else
inline constexpr bool kIsSlowDevice = false;
#endif

// Whether a problem of so many elements is too large for this device.
inline bool is_too_large(int64_t numel) { return kIsSlowDevice && numel > 3000; }

inline constexpr Context kOnDevice{.device = DeviceType::kCUDA};

}  // namespace transformer_engine::testing
