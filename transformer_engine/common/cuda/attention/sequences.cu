// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The small kernels around cuDNN's attention.
//   attention_sequences  lengths_i = cu[i + 1] - cu[i];  starts_i = first_i * stride: one block,
//                        (2 + 2 starts) * batch numbers read and written.
//   attention_clear      zeros where a tensor's tokens belong to no sequence, and in queries
//   without
//                        a visible key: a warp takes a token, finds its sequence (a binary search
//                        in packed batches) and writes 16 bytes a lane if it must. Nothing but the
//                        lengths is read; a batch without padding writes nothing.
#include "cuda/attention/sequences.h"

#include <algorithm>
#include <limits>

#include "cuda/candidate.h"
#include "cuda/device/launch.h"
#include "cuda/device/vector.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVector = 8;  // elements of 2 bytes

// One side, queries or keys.
struct Side {
  const int32_t* cu;     // [batch + 1], or null: all have `longest` tokens
  const int32_t* first;  // [batch + 1], packed
  int32_t longest;
};

__device__ __forceinline__ int32_t length_of(const Side& side, int64_t i) {
  if (side.cu == nullptr) {
    return side.longest;
  }
  return max(0, min(side.cu[i + 1] - side.cu[i], side.longest));
}

struct NumbersProblem {
  Side q, kv;
  int64_t batch;
  int32_t* lengths_q;
  int32_t* lengths_kv;
  void* starts[kMostStarts];
  int64_t strides[kMostStarts];
  bool are_of_q[kMostStarts];
  int count;
};

template <class Start>
__global__ void __launch_bounds__(kThreads)
    attention_sequences(const __grid_constant__ NumbersProblem problem) {
  for (int64_t i = threadIdx.x; i <= problem.batch; i += kThreads) {
    if (i < problem.batch) {
      problem.lengths_q[i] = length_of(problem.q, i);
      problem.lengths_kv[i] = length_of(problem.kv, i);
    }
    for (int j = 0; j < problem.count; ++j) {
      const int64_t first = problem.are_of_q[j] ? problem.q.first[i] : problem.kv.first[i];
      static_cast<Start*>(problem.starts[j])[i] = static_cast<Start>(first * problem.strides[j]);
    }
  }
}

struct ClearProblem {
  HeadsView view;
  Side side;   // of this tensor
  Side other;  // queries: the keys they see
  int64_t batch;
  int64_t rows;    // tokens of all sequences; packed: of the row
  int64_t tokens;  // of a sequence, where it is not packed
  int64_t left, right;
  int size_vectors;  // of a head
  int row_vectors;   // of all heads
  bool is_packed, is_query, is_bottom_right;
};

struct Token {
  int64_t sequence;  // -1: none
  int64_t position;
};

// The last sequence that begins at or before the row.
__device__ __forceinline__ Token packed_token(const ClearProblem& problem, int64_t row) {
  int64_t low = -1;
  int64_t high = problem.batch;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (problem.side.first[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {low, low < 0 ? 0 : row - problem.side.first[low]};
}

__device__ __forceinline__ bool sees_a_key(const ClearProblem& problem, const Token& token,
                                           int64_t queries) {
  const int64_t keys = length_of(problem.other, token.sequence);
  const int64_t diagonal = token.position + (problem.is_bottom_right ? keys - queries : 0);
  const int64_t from = problem.left < 0 ? 0 : max(int64_t{0}, diagonal - problem.left);
  const int64_t to = problem.right < 0 ? keys - 1 : min(keys - 1, diagonal + problem.right);
  return from <= to;
}

__global__ void __launch_bounds__(kThreads)
    attention_clear(const __grid_constant__ ClearProblem problem) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row =
           static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
       row < problem.rows; row += step) {
    const Token token = problem.is_packed ? packed_token(problem, row)
                                          : Token{row / problem.tokens, row % problem.tokens};
    if (token.sequence >= 0) {
      const int64_t length = length_of(problem.side, token.sequence);
      if (token.position < length && (!problem.is_query || sees_a_key(problem, token, length))) {
        continue;
      }
    }
    const int64_t start = problem.is_packed ? row * problem.view.token_stride
                                            : token.sequence * problem.view.batch_stride +
                                                  token.position * problem.view.token_stride;
    for (int i = lane; i < problem.row_vectors; i += kWarp) {
      const int64_t head = i / problem.size_vectors;
      const int64_t vector = i % problem.size_vectors;
      const Vec<uint16_t, kVector> zero{};
      zero.store(static_cast<uint16_t*>(problem.view.data) + start +
                 head * problem.view.head_stride + vector * kVector);
    }
  }
}

int32_t narrow(int64_t value) {
  return static_cast<int32_t>(std::min<int64_t>(value, std::numeric_limits<int32_t>::max()));
}

Side side_of(const AttentionProblem& problem, const AttentionSequences& sequences, bool is_query) {
  const int32_t* cu = is_query ? sequences.cu_q : sequences.cu_kv;
  const int32_t* first = is_query ? sequences.first_q : sequences.first_kv;
  return {.cu = problem.has_lengths ? cu : nullptr,
          .first = first != nullptr ? first : cu,
          .longest = narrow(is_query ? problem.queries : problem.keys)};
}

}  // namespace

void write_sequence_numbers(const AttentionProblem& problem, const AttentionSequences& sequences,
                            const StartsTable& starts, bool has_wide_starts,
                            const SequenceNumbers& numbers, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  NumbersProblem work{.q = side_of(problem, sequences, true),
                      .kv = side_of(problem, sequences, false),
                      .batch = problem.batch,
                      .lengths_q = numbers.lengths_q,
                      .lengths_kv = numbers.lengths_kv,
                      .starts = {},
                      .strides = {},
                      .are_of_q = {},
                      .count = starts.count()};
  for (int i = 0; i < work.count; ++i) {
    work.starts[i] = numbers.starts[static_cast<size_t>(i)];
    work.strides[i] = starts.at(i).token_stride;
    work.are_of_q[i] = starts.at(i).is_query;
  }
  const Launch config{.name = "attention_sequences",
                      .grid = dim3(1),
                      .block = dim3(kThreads),
                      .stream = stream_of(context)};
  if (has_wide_starts) {
    launch(&attention_sequences<int64_t>, config, work);
  } else {
    launch(&attention_sequences<int32_t>, config, work);
  }
}

void clear_outside_sequences(const AttentionProblem& problem, const AttentionSequences& sequences,
                             const ClearTarget& target, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const int64_t tokens = target.is_query ? problem.queries : problem.keys;
  const int64_t packed_tokens = target.is_query ? problem.tokens_q : problem.tokens_kv;
  const ClearProblem work{.view = target.view,
                          .side = side_of(problem, sequences, target.is_query),
                          .other = side_of(problem, sequences, !target.is_query),
                          .batch = problem.batch,
                          .rows = problem.is_packed ? packed_tokens : problem.batch * tokens,
                          .tokens = std::max<int64_t>(tokens, 1),
                          .left = problem.left,
                          .right = problem.right,
                          .size_vectors = static_cast<int>(target.size / kVector),
                          .row_vectors = static_cast<int>(target.heads * target.size / kVector),
                          .is_packed = problem.is_packed,
                          .is_query = target.is_query,
                          .is_bottom_right = problem.is_bottom_right};
  if (work.rows == 0 || work.row_vectors == 0) {
    return;
  }
  constexpr int64_t kMostBlocks = 1 << 16;
  launch(&attention_clear,
         {.name = "attention_clear",
          .grid = dim3(
              static_cast<unsigned>(std::min(divide_up<int64_t>(work.rows, kWarps), kMostBlocks))),
          .block = dim3(kThreads),
          .stream = stream_of(context)},
         work);
}

}  // namespace transformer_engine::cuda
