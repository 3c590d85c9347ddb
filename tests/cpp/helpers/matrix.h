// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Owning matrices with guard bytes, their random contents, and a comparison that says where.
#pragma once

#include <gtest/gtest.h>
#include <transformer_engine/types.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numerics/half.h"

namespace transformer_engine::testing {

// [rows, cols] of a type of whole bytes, surrounded by guard bytes that the destructor checks.
class GuardedMatrix {
 public:
  GuardedMatrix(DType dtype, int64_t rows, int64_t cols)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        bytes_(static_cast<size_t>(rows * cols * element_size_bytes(dtype))),
        storage_(bytes_ + 2 * kGuard, kGuardByte) {}
  GuardedMatrix(GuardedMatrix&&) = default;
  GuardedMatrix(const GuardedMatrix&) = default;
  ~GuardedMatrix() {
    for (size_t i = 0; i < kGuard && !storage_.empty(); ++i) {
      EXPECT_EQ(storage_[i], kGuardByte) << "written " << kGuard - i << " bytes before the data";
      EXPECT_EQ(storage_[kGuard + bytes_ + i], kGuardByte) << "written " << i << " bytes after it";
    }
  }

  TensorView view() {
    return {.data = data<void>(), .dtype = dtype_, .rows = rows_, .cols = cols_};
  }
  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(storage_.data() + kGuard);
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t numel() const { return rows_ * cols_; }
  size_t size_bytes() const { return bytes_; }

  void set(int64_t index, float value) {
    switch (dtype_) {
      case DType::kBFloat16:
        data<uint16_t>()[index] = numerics::bf16_from_float(value);
        break;
      case DType::kFloat16:
        data<uint16_t>()[index] = numerics::fp16_from_float(value);
        break;
      default:
        data<float>()[index] = value;
    }
  }
  double get(int64_t index) {  // exact
    switch (dtype_) {
      case DType::kBFloat16:
        return numerics::float_from_bf16(data<uint16_t>()[index]);
      case DType::kFloat16:
        return numerics::float_from_fp16(data<uint16_t>()[index]);
      default:
        return data<float>()[index];
    }
  }

 private:
  static constexpr size_t kGuard = 64;  // keeps the alignment of the storage
  static constexpr uint8_t kGuardByte = 0xA5;
  DType dtype_;
  int64_t rows_;
  int64_t cols_;
  size_t bytes_;
  std::vector<uint8_t> storage_;
};

using Matrix = GuardedMatrix;

// Normal numbers of widely spread size.
inline void fill_random(Matrix& matrix, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::uniform_int_distribution<int> exponent(-12, 8);
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    matrix.set(i, std::ldexp(normal(generator), exponent(generator)));
  }
}

inline void fill_random_bytes(Matrix& matrix, uint32_t seed) {
  std::mt19937 generator(seed);
  for (size_t i = 0; i < matrix.size_bytes(); ++i) {
    matrix.data<uint8_t>()[i] = static_cast<uint8_t>(generator());
  }
}

// Equal bytes; the first difference is printed with its position.
inline ::testing::AssertionResult same_bytes(Matrix& got, Matrix& expected) {
  const auto element = static_cast<size_t>(
      expected.view().numel() == 0 ? 1 : expected.size_bytes() / expected.numel());
  if (got.size_bytes() != expected.size_bytes()) {
    return ::testing::AssertionFailure() << "sizes differ";
  }
  for (size_t i = 0; i < got.size_bytes(); ++i) {
    const unsigned a = got.data<uint8_t>()[i];
    const unsigned b = expected.data<uint8_t>()[i];
    if (a != b) {
      const auto index = static_cast<int64_t>(i / element);
      return ::testing::AssertionFailure()
             << "row " << index / expected.cols() << " col " << index % expected.cols() << " byte "
             << i % element << ": got " << a << ", expected " << b;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace transformer_engine::testing
