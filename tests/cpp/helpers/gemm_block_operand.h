// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// GEMM operands of every kind that gemm() takes, made of codes and scales (nothing is quantized
// here), with their values in FP64 from the definitions of the formats (formats.h).
#pragma once

#include <transformer_engine/gemm.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "helpers/formats.h"
#include "helpers/gemm_problem.h"

namespace transformer_engine::testing {

enum class ScaleKind { kNone, kTensor, kPowerOfTwo, kFloat, kE8M0, kE4M3, kE4M3RowScaled };

struct OperandKind {
  const char* name;
  DType dtype;
  ScaleKind scales;
  int64_t block_rows, block_cols;  // as stored
  bool has_scales_by_col;          // scales of one column of blocks are neighbours
  float e4m3_max = 448.0F;
};

inline constexpr OperandKind kOperandKinds[] = {
    {"float32", DType::kFloat32, ScaleKind::kNone, 1, 1, false},
    {"bfloat16", DType::kBFloat16, ScaleKind::kNone, 1, 1, false},
    {"float16", DType::kFloat16, ScaleKind::kNone, 1, 1, false},
    {"e4m3 tensor", DType::kFloat8E4M3, ScaleKind::kTensor, 1, 1, false},
    {"e4m3 1x128", DType::kFloat8E4M3, ScaleKind::kPowerOfTwo, 1, 128, true},
    {"e5m2 128x128", DType::kFloat8E5M2, ScaleKind::kPowerOfTwo, 128, 128, false},
    {"e5m2 1x128 float", DType::kFloat8E5M2, ScaleKind::kFloat, 1, 128, true},
    {"e4m3 128x128 float", DType::kFloat8E4M3, ScaleKind::kFloat, 128, 128, false},
    {"e4m3 mx 1x32", DType::kFloat8E4M3, ScaleKind::kE8M0, 1, 32, false},
    {"e5m2 mx 1x32", DType::kFloat8E5M2, ScaleKind::kE8M0, 1, 32, false},
    {"e4m3 mx 32x1", DType::kFloat8E4M3, ScaleKind::kE8M0, 32, 1, false},
    {"e5m2 mx 32x1", DType::kFloat8E5M2, ScaleKind::kE8M0, 32, 1, false},
    {"nvfp4", DType::kFloat4E2M1, ScaleKind::kE4M3, 1, 16, false},
    {"nvfp4 256", DType::kFloat4E2M1, ScaleKind::kE4M3, 1, 16, true, 256.0F},
    {"nvfp4 row-scaled", DType::kFloat4E2M1, ScaleKind::kE4M3RowScaled, 1, 16, false},
};

inline bool has_block_scales(const OperandKind& kind) {
  return kind.scales != ScaleKind::kNone && kind.scales != ScaleKind::kTensor;
}
inline bool has_amax(const OperandKind& kind) { return kind.dtype == DType::kFloat4E2M1; }

// Pairs that gemm() takes: all but two high-precision types that differ.
inline bool is_pair(const OperandKind& a, const OperandKind& b) {
  return a.dtype == b.dtype || !is_high_precision(a.dtype) || !is_high_precision(b.dtype);
}

class BlockOperand {
 public:
  // op(operand) is [rows, k]. Codes run through every finite one of the format, scales are drawn so
  // that elements are of size 1 or so; what is between and behind them is poisoned.
  BlockOperand(const OperandKind& kind, int64_t rows, int64_t k, bool is_transposed,
               std::mt19937& random)
      : kind_(kind),
        stored_rows_(is_transposed ? k : rows),
        stored_cols_(is_transposed ? rows : k),
        is_transposed_(is_transposed),
        row_bytes_(stored_row_bytes(kind.dtype, stored_cols_)),
        bytes_(static_cast<size_t>(stored_rows_ * row_bytes_), 0xFF) {
    make_scales(random);
    make_elements(random);
  }

  GemmOperand operand() {
    GemmOperand operand;
    operand.matrix = {bytes_.data(), kind_.dtype, stored_rows_, stored_cols_, nullptr};
    operand.is_transposed = is_transposed_;
    if (kind_.scales == ScaleKind::kTensor) {
      operand.scale_inv = &scale_inv;
    } else if (has_block_scales(kind_)) {
      operand.scales = scales_;
      operand.scales.data = scale_bytes_.data();
      operand.scales.amax = has_amax(kind_) ? amax_.data() : nullptr;
    }
    return operand;
  }

  // Element (row, i) of op(operand) without alpha(), which scales all of it.
  double at(int64_t row, int64_t i) const {
    return is_transposed_ ? stored(i, row) : stored(row, i);
  }
  std::vector<double> values() const {  // [rows, k]
    const int64_t rows = is_transposed_ ? stored_cols_ : stored_rows_;
    const int64_t k = is_transposed_ ? stored_rows_ : stored_cols_;
    std::vector<double> all;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        all.push_back(at(row, i));
      }
    }
    return all;
  }
  double alpha() const {
    switch (kind_.scales) {
      case ScaleKind::kTensor:
        return scale_inv;
      case ScaleKind::kE4M3:
        return amax_[0] / (6.0 * kind_.e4m3_max);
      default:
        return 1.0;
    }
  }
  // Roundings to FP32 of an element and of alpha().
  double roundings() const {
    switch (kind_.scales) {
      case ScaleKind::kFloat:
      case ScaleKind::kE4M3:
        return 1.0;
      case ScaleKind::kE4M3RowScaled:
        return 2.0;
      default:
        return 0.0;
    }
  }

  uint8_t& code(int64_t stored_row, int64_t stored_col) {
    return bytes_[static_cast<size_t>(stored_row * row_bytes_ + stored_col)];
  }
  void set_scale(int64_t stored_row, int64_t stored_col, double value) {
    put_scale(scale_index(stored_row, stored_col), value);
  }
  void set_scale_code(int64_t stored_row, int64_t stored_col, uint8_t code) {
    scale_bytes_[static_cast<size_t>(scale_index(stored_row, stored_col))] = code;
  }
  // Element (row, col) as stored becomes `value`, which the format must have.
  void set(int64_t row, int64_t col, double value) {
    uint8_t* const bytes = bytes_.data() + row * row_bytes_;
    if (kind_.dtype != DType::kFloat4E2M1) {
      encode(kind_.dtype, static_cast<float>(value), bytes + col * element_size_bytes(kind_.dtype));
      return;
    }
    const auto code = static_cast<uint8_t>(NearestCode(kE2M1).saturating(value));
    uint8_t& byte = bytes[col / 2];
    byte = static_cast<uint8_t>(col % 2 == 0 ? (byte & 0xF0) | code : (byte & 0x0F) | code << 4);
  }
  template <typename Draw>
  void fill(const Draw& draw) {
    for (int64_t row = 0; row < stored_rows_; ++row) {
      for (int64_t col = 0; col < stored_cols_; ++col) {
        set(row, col, draw());
      }
    }
  }
  template <typename Draw>
  void fill_scales(const Draw& draw) {
    for (int64_t row = 0; row < stored_rows_; row += kind_.block_rows) {
      for (int64_t col = 0; col < stored_cols_; col += kind_.block_cols) {
        set_scale(row, col, draw());
      }
    }
  }
  void set_amax(float value) {
    for (float& amax : amax_) {
      amax = value;
    }
  }

  float scale_inv = 0x1.8p-9F;  // brings the largest E4M3 number near 1

 private:
  static int64_t stored_row_bytes(DType dtype, int64_t cols) {
    return dtype == DType::kFloat4E2M1 ? (cols + 15) / 16 * 8 : cols * element_size_bytes(dtype);
  }
  static const Format& format_of(DType dtype) {
    return dtype == DType::kFloat8E4M3 ? kE4M3 : dtype == DType::kFloat8E5M2 ? kE5M2 : kE2M1;
  }
  int64_t scale_index(int64_t row, int64_t col) const {
    return row / scales_.block_rows * scales_.row_stride +
           col / scales_.block_cols * scales_.col_stride;
  }

  void make_scales(std::mt19937& random) {
    if (!has_block_scales(kind_)) {
      return;
    }
    const int64_t down = (stored_rows_ + kind_.block_rows - 1) / kind_.block_rows;
    const int64_t across = (stored_cols_ + kind_.block_cols - 1) / kind_.block_cols;
    scales_.dtype = kind_.scales == ScaleKind::kE8M0 ? DType::kFloat8E8M0
                    : has_amax(kind_)                ? DType::kFloat8E4M3
                                                     : DType::kFloat32;
    scales_.block_rows = kind_.block_rows;
    scales_.block_cols = kind_.block_cols;
    // Multiples of 4, as cuBLASLt and the quantizers have them, and others.
    const int64_t row_size = kind_.block_cols == 128 ? (across + 3) / 4 * 4 : across + 3;
    const int64_t col_size = down % 4 == 0 ? down : down + 3;
    scales_.row_stride = kind_.has_scales_by_col ? 1 : row_size;
    scales_.col_stride = kind_.has_scales_by_col ? col_size : 1;
    scales_.are_powers_of_two = kind_.scales == ScaleKind::kPowerOfTwo;
    scales_.is_row_scaled = kind_.scales == ScaleKind::kE4M3RowScaled;
    scales_.e4m3_max = kind_.e4m3_max;
    const int64_t count = down == 0 || across == 0 ? 1
                                                   : (down - 1) * scales_.row_stride +
                                                         (across - 1) * scales_.col_stride + 1;
    scale_bytes_.assign(static_cast<size_t>(count * element_size_bytes(scales_.dtype)), 0xFF);
    std::uniform_real_distribution<float> amax(1.0F, 4.0F);
    for (int64_t row = 0; row < (scales_.is_row_scaled ? stored_rows_ : 1); ++row) {
      amax_.push_back(amax(random));
    }
    amax_.push_back(HUGE_VALF);
    fill_scales([&] { return draw_scale(random); });
  }

  double draw_scale(std::mt19937& random) const {
    const int size = kind_.dtype == DType::kFloat8E5M2 ? -15 : -8;  // of the largest code
    switch (kind_.scales) {
      case ScaleKind::kFloat:
        return std::ldexp(std::uniform_real_distribution<float>(0.5F, 4.0F)(random), size);
      case ScaleKind::kE4M3:
      case ScaleKind::kE4M3RowScaled:  // every positive code, 0 too
        return kE4M3.value(random() % 0x7F);
      default:
        return std::ldexp(1.0, size + static_cast<int>(random() % 5) - 2);
    }
  }

  void put_scale(int64_t index, double value) {
    uint8_t* const p = scale_bytes_.data() + index * element_size_bytes(scales_.dtype);
    const auto scale = static_cast<float>(value);
    if (scales_.dtype == DType::kFloat32) {
      std::memcpy(p, &scale, sizeof(scale));
    } else if (scales_.dtype == DType::kFloat8E8M0) {
      *p = static_cast<uint8_t>(std::ilogb(value) + 127);
    } else {
      *p = static_cast<uint8_t>(NearestCode(kE4M3).saturating(value));
    }
  }

  double scale(int64_t row, int64_t col) const {
    const int64_t index = scale_index(row, col);
    const uint8_t* const p = scale_bytes_.data() + index * element_size_bytes(scales_.dtype);
    if (scales_.dtype == DType::kFloat32) {
      float value;
      std::memcpy(&value, p, sizeof(value));
      return value;
    }
    return scales_.dtype == DType::kFloat8E8M0 ? std::ldexp(1.0, *p - 127) : kE4M3.value(*p);
  }

  void make_elements(std::mt19937& random) {
    std::normal_distribution<float> normal;
    const Format& format = format_of(kind_.dtype);
    const uint32_t codes = 2 * format.sign_bit();
    uint32_t next = random();
    for (int64_t row = 0; row < stored_rows_; ++row) {
      for (int64_t col = 0; col < stored_cols_; ++col) {
        if (is_high_precision(kind_.dtype)) {
          set(row, col, normal(random));
          continue;
        }
        do {
          next += 77;  // odd: passes through all codes
        } while (!std::isfinite(format.value(next % codes)));
        set_code(row, col, static_cast<uint8_t>(next % codes));
      }
    }
  }
  void set_code(int64_t row, int64_t col, uint8_t value) {
    if (kind_.dtype == DType::kFloat4E2M1) {
      set(row, col, kE2M1.value(value));
    } else {
      code(row, col) = value;
    }
  }

  double stored(int64_t row, int64_t col) const {
    const uint8_t* const bytes = bytes_.data() + row * row_bytes_;
    if (is_high_precision(kind_.dtype)) {
      return decode(kind_.dtype, bytes + col * element_size_bytes(kind_.dtype));
    }
    const bool is_packed = kind_.dtype == DType::kFloat4E2M1;
    const uint32_t code = !is_packed     ? bytes[col]
                          : col % 2 == 0 ? bytes[col / 2] & 0x0F
                                         : bytes[col / 2] >> 4;
    double value = format_of(kind_.dtype).value(code);
    if (has_block_scales(kind_)) {
      value *= scale(row, col);
    }
    if (kind_.scales == ScaleKind::kE4M3RowScaled) {
      value *= amax_[static_cast<size_t>(row)] / (6.0 * kind_.e4m3_max);
    }
    return value;
  }

  OperandKind kind_;
  int64_t stored_rows_, stored_cols_;
  bool is_transposed_;
  int64_t row_bytes_;
  std::vector<uint8_t> bytes_;
  BlockScales scales_;
  std::vector<uint8_t> scale_bytes_;
  std::vector<float> amax_;
};

// One case with two such operands. The case's a_dtype and b_dtype are not read.
class BlockProblem {
 public:
  BlockOperand a, b;
  GemmMatrix bias, d_before;

  BlockProblem(const GemmCase& spec, const OperandKind& a_kind, const OperandKind& b_kind,
               unsigned seed)
      : BlockProblem(spec, a_kind, b_kind, std::mt19937(seed)) {}

  struct Spec : GemmCase {
    std::string kinds;
    std::string text() const { return kinds + ": " + GemmCase::text(); }
  };
  const Spec& spec() const { return spec_; }

  GemmArgs args(GemmMatrix& d, GemmMatrix& pre) {
    GemmArgs args;
    args.a = a.operand();
    args.b = b.operand();
    args.d = d.view();
    if (spec_.has_bias) {
      args.bias = bias.view();
    }
    if (spec_.has_pre) {
      args.pre_epilogue = pre.view();
    }
    args.epilogue = spec_.has_gelu ? GemmEpilogue::kGELU : GemmEpilogue::kNone;
    args.accumulate = spec_.accumulate;
    return args;
  }

  // The operands must not change after the first call.
  GemmExpectedPair expected(int64_t row, int64_t col) {
    if (a_values_.empty() && b_values_.empty()) {
      a_values_ = a.values();
      b_values_ = b.values();
    }
    GemmElement element;
    for (int64_t i = 0; i < spec_.k; ++i) {
      element.add(a_values_[static_cast<size_t>(row * spec_.k + i)],
                  b_values_[static_cast<size_t>(col * spec_.k + i)]);
    }
    element.alpha = a.alpha() * b.alpha();
    element.bias = spec_.has_bias ? bias.get(0, col) : 0.0;
    element.before = spec_.accumulate ? d_before.get(row, col) : 0.0;
    element.extra_roundings = a.roundings() + b.roundings();
    element.is_fp8 = is_fp8(a.operand().matrix.dtype) && is_fp8(b.operand().matrix.dtype);
    return expected_of(spec_, element);
  }

 private:
  BlockProblem(const GemmCase& spec, const OperandKind& a_kind, const OperandKind& b_kind,
               std::mt19937 random)
      : a(a_kind, spec.m, spec.k, spec.a_transposed, random),
        b(b_kind, spec.n, spec.k, spec.b_transposed, random),
        bias(spec.bias_dtype, 1, spec.n),
        d_before(spec.d_dtype, spec.m, spec.n),
        spec_{spec, std::string(a_kind.name) + ", " + b_kind.name} {
    std::normal_distribution<float> normal;
    bias.fill([&] { return normal(random); });
    d_before.fill([&] { return normal(random); });
  }

  Spec spec_;
  std::vector<double> a_values_, b_values_;
};

}  // namespace transformer_engine::testing
