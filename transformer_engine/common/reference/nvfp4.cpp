// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/nvfp4.h"

#include "numerics/hadamard.h"
#include "numerics/nvfp4.h"
#include "numerics/scale.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

constexpr int kBlock = numerics::kNvfp4Block;

struct Block {
  float value[kBlock];
};

// One of the two copies. Rows and columns are those of the copy as stored; elements beyond the
// input are 0.
class Copy {
 public:
  Copy(const QuantizeNvfp4Args& args, bool is_columnwise)
      : args_(args),
        is_columnwise_(is_columnwise),
        rows_(is_columnwise ? args.input.cols : args.input.rows),
        cols_(is_columnwise ? args.input.rows : args.input.cols) {}

  int64_t rows() const { return rows_; }
  int64_t blocks() const { return (cols_ + kBlock - 1) / kBlock; }
  bool is_columnwise() const { return is_columnwise_; }

  Block block(int64_t row, int64_t block) const {
    Block result;
    for (int i = 0; i < kBlock; ++i) {
      result.value[i] = element(row, block * kBlock + i);
    }
    if (is_columnwise_ && args_.has_hadamard) {
      numerics::random_hadamard(result.value, args_.hadamard_signs);
    }
    return result;
  }

 private:
  float element(int64_t row, int64_t col) const {
    if (row >= rows_ || col >= cols_) {
      return 0.0F;
    }
    const int64_t index = is_columnwise_ ? col * args_.input.cols + row : row * cols_ + col;
    return load_float(args_.input, index);
  }

  const QuantizeNvfp4Args& args_;
  const bool is_columnwise_;
  const int64_t rows_;
  const int64_t cols_;
};

float amax_of(const Block& block) {
  float amax = 0.0F;
  for (const float value : block.value) {
    amax = numerics::max_skip_nan(amax, numerics::magnitude(value));
  }
  return amax;
}

float row_amax(const Copy& copy, int64_t row) {
  float amax = 0.0F;
  for (int64_t block = 0; block < copy.blocks(); ++block) {
    amax = numerics::max_skip_nan(amax, amax_of(copy.block(row, block)));
  }
  return amax;
}

void write_amax(const Copy& copy, const BlockScales& scales) {
  if (scales.amax == nullptr) {
    return;
  }
  float amax = 0.0F;
  for (int64_t row = 0; row < copy.rows(); ++row) {
    const float largest = row_amax(copy, row);
    amax = numerics::max_skip_nan(amax, largest);
    if (scales.is_row_scaled) {
      scales.amax[row] = largest;
    }
  }
  if (!scales.is_row_scaled) {
    *scales.amax = amax;
  }
}

float block_error(const Block& block, uint8_t block_scale, const numerics::Nvfp4Scale& tensor,
                  FourOverSix mode) {
  const float multiplier = numerics::nvfp4_multiplier(block_scale, tensor);
  float errors[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const float x = block.value[i];
    const uint8_t code = numerics::encode<numerics::E2M1>(x * multiplier);
    const float error = numerics::nvfp4_element_error(x, code, block_scale, tensor.scale);
    errors[i] = mode == FourOverSix::kMeanSquaredError ? error * error : error;
  }
  return numerics::sum_by_halves(errors);
}

// Quantization of one copy.
class CopyQuantizer {
 public:
  CopyQuantizer(const QuantizeNvfp4Args& args, bool is_columnwise)
      : args_(args),
        output_(is_columnwise ? args.columnwise : args.rowwise),
        copy_(args, is_columnwise) {}

  void run() const {
    if (!output_.is_wanted()) {
      return;
    }
    const BlockScales& scales = output_.scales;
    for (int64_t row = 0; row < copy_.rows(); ++row) {
      const float amax = scales.amax[scales.is_row_scaled ? row : 0];
      const numerics::Nvfp4Scale tensor = numerics::nvfp4_scale(amax, scales.e4m3_max);
      for (int64_t block = 0; block < copy_.blocks(); ++block) {
        const uint8_t block_scale = choose_scale(row, block, tensor);
        static_cast<uint8_t*>(scales.data)[scales.index(row, block * kBlock)] = block_scale;
        write_codes(row, block, numerics::nvfp4_multiplier(block_scale, tensor));
      }
    }
  }

 private:
  uint8_t choose_scale(int64_t row, int64_t block, const numerics::Nvfp4Scale& tensor) const {
    const float amax =
        args_.has_square_tiles ? tile_amax(row, block) : amax_of(copy_.block(row, block));
    const uint8_t to_six = numerics::nvfp4_block_scale(amax, tensor);
    if (args_.four_over_six == FourOverSix::kNone) {
      return to_six;
    }
    const uint8_t to_four = numerics::nvfp4_block_scale_to_four(amax, tensor);
    const bool is_four_better =
        error(row, block, to_four, tensor) < error(row, block, to_six, tensor);
    return is_four_better ? to_four : to_six;
  }

  float tile_amax(int64_t row, int64_t block) const {
    float amax = 0.0F;
    for (int i = 0; i < kBlock; ++i) {
      const Block values = copy_.block(row / kBlock * kBlock + i, block);
      amax = numerics::max_skip_nan(amax, amax_of(values));
    }
    return amax;
  }

  float error(int64_t row, int64_t block, uint8_t block_scale,
              const numerics::Nvfp4Scale& tensor) const {
    if (!args_.has_square_tiles) {
      return block_error(copy_.block(row, block), block_scale, tensor, args_.four_over_six);
    }
    // Of the tile, along the rows of the input for both copies, so that they choose alike.
    const Copy rowwise(args_, false);
    const int64_t tile_row = copy_.is_columnwise() ? block : row / kBlock;
    const int64_t tile_col = copy_.is_columnwise() ? row / kBlock : block;
    float errors[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const Block values = rowwise.block(tile_row * kBlock + i, tile_col);
      errors[i] = block_error(values, block_scale, tensor, args_.four_over_six);
    }
    return numerics::sum_by_halves(errors);
  }

  uint8_t encode(int64_t row, int64_t col, float value) const {
    if (!args_.is_stochastic) {
      return numerics::encode<numerics::E2M1>(value);
    }
    const auto counter = numerics::nvfp4_random_counter(row, col, copy_.is_columnwise());
    const auto words = numerics::philox4x32_10(counter, numerics::philox_key(args_.seed));
    return numerics::encode_e2m1_stochastic(value, numerics::nvfp4_random_bits(words, col));
  }

  void write_codes(int64_t row, int64_t block, float multiplier) const {
    constexpr int kBlockBytes = kBlock / 2;
    const Block values = copy_.block(row, block);
    uint8_t* bytes =
        static_cast<uint8_t*>(output_.data.data) + (row * copy_.blocks() + block) * kBlockBytes;
    for (int i = 0; i < kBlock; i += 2) {
      const int64_t col = block * kBlock + i;
      bytes[i / 2] = numerics::pack_e2m1(encode(row, col, values.value[i] * multiplier),
                                         encode(row, col + 1, values.value[i + 1] * multiplier));
    }
  }

  const QuantizeNvfp4Args& args_;
  const BlockScaledMatrix& output_;
  const Copy copy_;
};

}  // namespace

void compute_nvfp4_amax(const Nvfp4AmaxProblem& problem, const Context&) {
  const QuantizeNvfp4Args& args = problem.quantize;
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  write_amax(Copy(args, false), args.rowwise.scales);
  write_amax(Copy(args, true), args.columnwise.scales);
}

void quantize_nvfp4(const QuantizeNvfp4Args& args, const Context&) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  CopyQuantizer(args, false).run();
  CopyQuantizer(args, true).run();
}

}  // namespace transformer_engine::reference
