// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Packing of GEMM operands into panels (GemmPackArgs in cpu/gemm_kernels.h). Everything is exact:
// FP8 and BF16 fit BF16, FP8, BF16 and FP16 fit FP32; block-scaled operands: block_codes.h.
//
// Work is cut into squares of kWidth rows times a few steps. Stored [rows, k], a square is read row
// by row and transposed in registers; stored [k, rows], a step is read as it stands, or two stored
// rows are interleaved to pairs. Edges go through a zeroed copy, so that no byte outside the
// operand is read. Block-scaled operands are dequantized piece by piece into memory that stays in
// the first two caches, and packed from there: about a byte more to write and read per byte packed.
#pragma once

#include "cpu/gemm_kernels.h"
#include "cpu/simd/block_codes.h"
#include "cpu/simd/gemm_operand.h"
#include "cpu/simd/transpose_words.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// One row's next words: kVectors registers made of kElements elements.
template <typename T, bool kAsPairs>
struct RowReader {
  static constexpr int kVectors = 1;
  static constexpr int kElements = kWidth;
  TE_INLINE void read(const T* p, Vf (&words)[1]) const { words[0] = load(p); }
};

// One step of kWidth rows, read from storage [k, rows]; `next` is the row of k + 1 (pairs only).
template <typename T, bool kAsPairs>
struct StepReader {
  TE_INLINE Vf read(const T* p, const T* /*next*/) const { return load(p); }
};

#if TE_ISA_LEVEL >= 3
TE_INLINE Vf load_words(const void* p) { return {_mm512_loadu_ps(p)}; }

template <>
struct RowReader<Bf16, true> {
  static constexpr int kVectors = 1;
  static constexpr int kElements = 2 * kWidth;
  TE_INLINE void read(const Bf16* p, Vf (&words)[1]) const { words[0] = load_words(p); }
};

template <typename Code>
struct CodeRowReader {
  static constexpr int kVectors = 2;
  static constexpr int kElements = 4 * kWidth;
  PairDecoder<Code> decoder;
  TE_INLINE void read(const Code* p, Vf (&words)[2]) const {
    decoder.decode_ordered(_mm512_loadu_si512(p), words[0], words[1]);
  }
};
template <>
struct RowReader<CodeE4M3, true> : CodeRowReader<CodeE4M3> {};
template <>
struct RowReader<CodeE5M2, true> : CodeRowReader<CodeE5M2> {};

template <>
struct StepReader<Bf16, true> {
  TE_INLINE Vf read(const Bf16* p, const Bf16* next) const {
    const __m512i low = _mm512_cvtepu16_epi32(load_half_bits(p));
    const __m512i high = _mm512_cvtepu16_epi32(load_half_bits(next));
    return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)))};
  }
};

template <typename Code>
struct CodeStepReader {
  PairDecoder<Code> decoder;
  TE_INLINE Vf read(const Code* p, const Code* next) const {
    const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(next));
    // decode() puts bytes 0-7 of each 128-bit lane into its first result.
    const __m128i low = _mm_unpacklo_epi8(even, odd);
    const __m128i high = _mm_unpackhi_epi8(even, odd);
    const __m256i pairs = _mm256_set_m128i(high, low);
    const __m512i codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3),
                                                   _mm512_castsi256_si512(pairs));
    Vf words;
    Vf unused;
    decoder.decode(codes, words, unused);
    return words;
  }
};
template <>
struct StepReader<CodeE4M3, true> : CodeStepReader<CodeE4M3> {};
template <>
struct StepReader<CodeE5M2, true> : CodeStepReader<CodeE5M2> {};
#endif

template <typename T>
TE_INLINE void copy_elements(T* to, const T* from, int64_t count) {
  __builtin_memcpy(to, from, static_cast<uint64_t>(count) * sizeof(T));
}

// Where a group of up to kWidth rows of one panel goes.
struct PackTarget {
  float* words;   // step 0, first row of the group
  int64_t width;  // words per step
};

// Stored [rows, k]: `rows` rows of the group at p. A group narrower than kWidth is the last of its
// panel: the words stored too many belong to the next step, which is written afterwards.
template <typename T, bool kAsPairs>
TE_INLINE void pack_row_square(const RowReader<T, kAsPairs>& reader, const T* p, int64_t stride,
                               int64_t rows, int64_t steps, PackTarget target) {
  constexpr int kVectors = RowReader<T, kAsPairs>::kVectors;
  Vf words[kVectors][kWidth];
  for (int64_t row = 0; row < kWidth; ++row) {
    Vf read[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      read[i] = zero();
    }
    if (row < rows) {
      reader.read(p + row * stride, read);
    }
    for (int i = 0; i < kVectors; ++i) {
      words[i][row] = read[i];
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    transpose(words[i]);
    const int64_t left = steps - i * kWidth;
    for (int64_t step = 0; step < kWidth && step < left; ++step) {
      store(target.words + (i * kWidth + step) * target.width, words[i][step]);
    }
  }
}

template <typename T, bool kAsPairs>
inline void pack_row_group(const GemmPackArgs& args, const T* p, int64_t rows, PackTarget target) {
  using Reader = RowReader<T, kAsPairs>;
  constexpr int64_t kElements = Reader::kElements;
  constexpr int64_t kSteps = Reader::kVectors * kWidth;
  constexpr int64_t kElementsPerStep = kElements / kSteps;
  const Reader reader{};
  int64_t k = 0;
  for (; k + kElements <= args.k; k += kElements) {
    pack_row_square<T, kAsPairs>(reader, p + k, args.stride, rows, kSteps, target);
    target.words += kSteps * target.width;
  }
  const int64_t rest = args.k - k;
  if (rest > 0) {
    T copy[kWidth * kElements] = {};
    for (int64_t row = 0; row < rows; ++row) {
      copy_elements(copy + row * kElements, p + row * args.stride + k, rest);
    }
    pack_row_square<T, kAsPairs>(reader, copy, kElements, rows,
                                 (rest + kElementsPerStep - 1) / kElementsPerStep, target);
  }
}

// Stored [k, rows].
template <typename T, bool kAsPairs>
inline void pack_step_group(const GemmPackArgs& args, const T* p, int64_t rows, PackTarget target) {
  constexpr int64_t kElementsPerStep = kAsPairs ? 2 : 1;
  static constexpr T kZeros[kWidth] = {};
  const StepReader<T, kAsPairs> reader{};
  for (int64_t k = 0; k < args.k; k += kElementsPerStep) {
    const T* row = p + k * args.stride;
    const bool has_next = k + 1 < args.k;
    if (rows == kWidth) {
      store(target.words, reader.read(row, has_next ? row + args.stride : kZeros));
    } else {
      T copy[2][kWidth] = {};
      copy_elements(copy[0], row, rows);
      if (kAsPairs && has_next) {
        copy_elements(copy[1], row + args.stride, rows);
      }
      store(target.words, reader.read(copy[0], copy[1]));
    }
    target.words += target.width;
  }
}

template <typename T, bool kAsPairs>
inline void pack_as(const GemmPackArgs& args) {
  constexpr int64_t kElementsPerStep = kAsPairs ? 2 : 1;
  const int64_t steps = (args.k + kElementsPerStep - 1) / kElementsPerStep;
  float* panel = static_cast<float*>(args.panels);
  for (int64_t first = 0; first < args.rows; first += args.width) {
    for (int64_t lane = 0; lane < args.width; lane += kWidth) {
      const int64_t row = first + lane;
      // Stored [k, rows], a narrow group may read on into the next panel's rows: full registers.
      const int64_t readable = args.rows - row < kWidth ? args.rows - row : kWidth;
      const int64_t wanted = args.width - lane < kWidth ? args.width - lane : kWidth;
      const PackTarget target = {panel + lane, args.width};
      const T* source = static_cast<const T*>(args.source);
      if (args.is_transposed) {
        pack_step_group<T, kAsPairs>(args, source + row, readable < 0 ? 0 : readable, target);
      } else {
        const int64_t rows = readable < wanted ? readable : wanted;
        pack_row_group<T, kAsPairs>(args, source + row * args.stride, rows < 0 ? 0 : rows, target);
      }
    }
    panel += steps * args.width;
  }
}

// The piece as T, packed panel by panel.
template <typename T, bool kAsPairs>
inline void pack_blocks_as(const GemmPackArgs& args) {
  constexpr int64_t kElementsPerStep = kAsPairs ? 2 : 1;
  const int64_t steps = (args.k + kElementsPerStep - 1) / kElementsPerStep;
  const int64_t panels_at_once =
      args.is_transposed && args.width < kPackColumns ? kPackColumns / args.width : 1;
  const int64_t rows_at_once = panels_at_once * args.width;
  T* const scratch = static_cast<T*>(args.scratch);
  GemmPackArgs panels = args;
  panels.stride = args.scratch_stride;
  for (int64_t first = 0; first < args.rows; first += rows_at_once) {
    const int64_t left = args.rows - first;
    panels.rows = left < rows_at_once ? left : rows_at_once;
    MatrixPart part = args.is_transposed
                          ? MatrixPart{args.row, args.col + first, args.k, panels.rows}
                          : MatrixPart{args.row + first, args.col, panels.rows, args.k};
    // Two E2M1 share a byte: begin with the even one.
    const int64_t skipped = args.blocks->data.dtype == DType::kFloat4E2M1 ? part.col % 2 : 0;
    part.col -= skipped;
    part.cols += skipped;
    panels.source = scratch + skipped;
    dequantize_part(*args.blocks, part, scratch, args.scratch_stride);
    pack_as<T, kAsPairs>(panels);
    panels.panels = static_cast<float*>(panels.panels) + panels_at_once * steps * args.width;
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
