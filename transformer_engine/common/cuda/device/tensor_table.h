// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Kernels on lists of tensors: a launch takes up to a table of tensors, which is an argument of the
// kernel and so needs no memory, no copy, and is part of a captured graph. A tensor is cut into
// chunks of elements, each block takes one, and finds its tensor by bisection (the same steps in
// all threads, on the constant bank that holds arguments).
#pragma once

#include <transformer_engine/multi_tensor.h>

#include <array>

#include "cuda/device/source.h"
#include "cuda/device/typed.h"
#include "cuda/dispatch.h"

namespace transformer_engine::cuda {

// What older drivers allow for the arguments of a kernel, without the largest ones beside a table.
inline constexpr size_t kTableBytes = 4096 - 128;

// kArrays arrays of each tensor, which is position `position + i` of the caller's lists.
template <int kArrays>
struct TensorTable {
  static constexpr int kTensorBytes = 9 * kArrays + 8 + 4 + 4 + 1;  // of the members below
  static constexpr int kCapacity = static_cast<int>((kTableBytes - 64) / kTensorBytes);
  void* data[kArrays][kCapacity];
  int64_t numel[kCapacity];
  int32_t position[kCapacity];
  int32_t first_block[kCapacity + 1];  // and one more: the number of blocks
  uint8_t dtype[kArrays][kCapacity];   // DType
  bool is_aligned[kCapacity];          // to 16 bytes, all arrays that are read in vectors
  int32_t count;
};

// What a block works on.
struct Chunk {
  int tensor;     // index into the table
  int64_t begin;  // elements [begin, end)
  int64_t end;
};

template <int64_t kChunkNumel, int kArrays>
__device__ __forceinline__ Chunk chunk_of_block(const TensorTable<kArrays>& table) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  int low = 0;
  int high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t begin = (block - table.first_block[low]) * kChunkNumel;
  const int64_t end = begin + kChunkNumel;
  return {low, begin, end < table.numel[low] ? end : table.numel[low]};
}

template <int kArrays>
__device__ __forceinline__ TypedPointer array_of(const TensorTable<kArrays>& table, int array,
                                                 int tensor) {
  return {table.data[array][tensor], static_cast<DType>(table.dtype[array][tensor])};
}

// kSourceVector elements as they are in memory. Conversions come after the loads of all arrays,
// which then are under way together; a conversion next to its load would wait for it.
struct RawVector {
  Vec<uint32_t, 4> words[2];  // the second of FP32 only

  __device__ __forceinline__ void load(const TypedPointer& array, int64_t i) {
    if (array.dtype == DType::kFloat32) {
      const auto* address = static_cast<const uint32_t*>(array.data) + i;
      words[0] = Vec<uint32_t, 4>::load(address);
      words[1] = Vec<uint32_t, 4>::load(address + 4);
    } else {
      words[0] = Vec<uint32_t, 4>::load(static_cast<const uint32_t*>(array.data) + i / 2);
      words[1] = Vec<uint32_t, 4>{};
    }
  }

  // Element j as the 16 bits of a two-byte type.
  __device__ __forceinline__ uint16_t half_bits(int j) const {
    return static_cast<uint16_t>(words[0].v[j / 2] >> (j % 2 * 16));
  }

  __device__ __forceinline__ void get(DType dtype, float (&values)[kSourceVector]) const {
    if (dtype == DType::kFloat32) {
#pragma unroll
      for (int j = 0; j < kSourceVector; ++j) {
        values[j] = __uint_as_float(words[j / 4].v[j % 4]);
      }
    } else if (dtype == DType::kBFloat16) {
#pragma unroll
      for (int j = 0; j < kSourceVector; ++j) {
        values[j] = __uint_as_float(static_cast<uint32_t>(half_bits(j)) << 16);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSourceVector; ++j) {
        values[j] = __half2float(__half(__half_raw{half_bits(j)}));
      }
    }
  }
};

// Elements [i, i + kSourceVector) before `end`, one by one; zeros beyond.
__device__ __forceinline__ void load_one_by_one(const TypedPointer& array, int64_t i, int64_t end,
                                                float (&values)[kSourceVector]) {
  with_type(array, [&](const auto* data) {
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      values[j] = i + j < end ? to_float(data[i + j]) : 0.0F;
    }
  });
}

__device__ __forceinline__ void store_elements(const TypedPointer& array, bool is_whole, int64_t i,
                                               int64_t end, const float (&values)[kSourceVector]) {
  with_type(array, [&](auto* data) {
    if (is_whole) {
      store_floats<kSourceVector, true>(data + i, values);
      return;
    }
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      if (i + j < end) {
        data[i + j] = from_float<std::remove_pointer_t<decltype(data)>>(values[j]);
      }
    }
  });
}

// Calls launch_table(table, blocks) for all tensors of the lists that have elements. Lists may be
// absent: their pointers are null. The first kVectors lists are read in vectors.
template <int64_t kChunkNumel, int kVectors, size_t kArrays, class LaunchTable>
void for_tables(const std::array<TensorList, kArrays>& lists, const LaunchTable& launch_table) {
  using Table = TensorTable<static_cast<int>(kArrays)>;
  Table table{};  // unused entries are zeros: nothing of the host reaches a kernel
  static_assert(sizeof(table) <= kTableBytes);
  table.count = 0;
  table.first_block[0] = 0;
  const auto flush = [&] {
    if (table.count > 0) {
      launch_table(table, static_cast<unsigned>(table.first_block[table.count]));
    }
    table.count = 0;
    table.first_block[0] = 0;
  };
  for (size_t position = 0; position < lists[0].size(); ++position) {
    const int64_t numel = lists[0][position].numel();
    if (numel == 0) {
      continue;
    }
    const int64_t blocks = divide_up(numel, kChunkNumel);
    constexpr int64_t kMostBlocks = 0x7FFFFFFF;
    if (table.count == Table::kCapacity || table.first_block[table.count] + blocks > kMostBlocks) {
      flush();
    }
    const int entry = table.count++;
    table.numel[entry] = numel;
    table.position[entry] = static_cast<int32_t>(position);
    table.first_block[entry + 1] = static_cast<int32_t>(table.first_block[entry] + blocks);
    table.is_aligned[entry] = true;
    for (size_t array = 0; array < kArrays; ++array) {
      const TensorView view = lists[array].empty() ? TensorView{} : lists[array][position];
      table.data[array][entry] = view.data;
      table.dtype[array][entry] = static_cast<uint8_t>(view.dtype);
      table.is_aligned[entry] &=
          static_cast<int>(array) >= kVectors || has_aligned_rows(view.data, 0, 1);
    }
  }
  flush();
}

}  // namespace transformer_engine::cuda
