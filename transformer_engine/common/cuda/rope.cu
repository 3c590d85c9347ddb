// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The op of transformer_engine/rope.h, one launch for all parts:
//   x' = x cos_x + y sin_y',  y' = y cos_y + x sin_x'   for the pairs (x, y) of channels of a head
// A block takes a tile of tokens. Its threads first find the tokens' positions, then compute the
// sines and cosines of all pairs of all tokens of the tile, once, into shared memory (parts with
// one table share them), then rotate the heads: a thread keeps to a few pairs, so that the
// coefficients stay in registers from head to head, and has the loads of two heads under way. Tiles
// are as large as gives every thread some heads. Heads are read and written once, 16 bytes an
// access where pointers, strides and widths allow: 4 bytes an element for BF16. The table adds 4
// bytes a channel of a token, once for all its heads. sincosf is good to 2 ulp for angles of any
// size (CUDA C++ Programming Guide, "Standard Functions").
#include <transformer_engine/rope.h>

#include <algorithm>

#include "cuda/candidate.h"
#include "cuda/device/source.h"
#include "cuda/dispatch.h"
#include "numerics/rope_positions.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kSlots = 512;    // pairs whose coefficients a block holds: 8 KiB
constexpr int kMaxTokens = 8;  // of a tile
constexpr int kBatch = 2;      // heads a thread loads before it rotates the first
constexpr unsigned kNoToken = ~0U;
// Pairs that a thread has at a time: 16 bytes of x and of y, or, interleaved, 8 elements.
template <class T, bool kIsInterleaved>
constexpr int kPairs = kIsInterleaved ? 4 : kVectorSize<T>;

struct Problem {
  RopeArgs args;
  int64_t tokens;
  int tile;  // tokens of a block at a time; more than one only where their pairs fit
};

struct Token {
  int64_t position, sequence;  // as the tensors count
  int64_t row;                 // of the table
};

struct Tile {
  Token tokens[kMaxTokens];
  // Of pair p of token t: [t * span + p], span the pairs held of a token.
  alignas(16) float cos_x[kSlots];
  alignas(16) float sin_x[kSlots];  // multiplies y in x'
  alignas(16) float cos_y[kSlots];
  alignas(16) float sin_y[kSlots];  // multiplies x in y'
};

// Coefficients of kN pairs, in registers.
template <int kN>
struct Coefficients {
  float cos_x[kN], sin_x[kN], cos_y[kN], sin_y[kN];

  template <bool kAligned>
  __device__ __forceinline__ void load(const Tile& tile, unsigned slot) {
    load_floats<kN, kAligned>(tile.cos_x + slot, cos_x);
    load_floats<kN, kAligned>(tile.sin_x + slot, sin_x);
    load_floats<kN, kAligned>(tile.cos_y + slot, cos_y);
    load_floats<kN, kAligned>(tile.sin_y + slot, sin_y);
  }
};

// Pairs [begin, begin + span) of every token of the tile.
__device__ __forceinline__ void compute_coefficients(const RopeArgs& args, const RopeTable& table,
                                                     int64_t begin, int span, int count,
                                                     Tile& tile) {
  for (int slot = static_cast<int>(threadIdx.x); slot < count * span; slot += kThreads) {
    const int64_t row = tile.tokens[slot / span].row;
    const auto pair = numerics::rope_pair(begin + slot % span, table.width, args.is_interleaved);
    const bool is_inside = row >= 0 && row < table.rows;
    const float* const angles = table.angles + (is_inside ? row * table.width : 0);
    const float angle_x = is_inside ? angles[pair.first] : __int_as_float(0x7FFFFFFF);
    const float angle_y = is_inside ? angles[pair.second] : angle_x;
    float sin_x = 0.0F;
    float cos_x = 0.0F;
    sincosf(angle_x, &sin_x, &cos_x);
    float sin_y = sin_x;
    float cos_y = cos_x;
    if (angle_y != angle_x) {  // not in an ordinary table
      sincosf(angle_y, &sin_y, &cos_y);
    }
    tile.cos_x[slot] = cos_x;
    tile.cos_y[slot] = cos_y;
    tile.sin_x[slot] = args.is_transposed ? sin_y : -sin_x;
    tile.sin_y[slot] = args.is_transposed ? -sin_x : sin_y;
  }
}

// Head `index` of a part and a token of the tile.
struct Head {
  unsigned token;
  int64_t input, output;  // element of its first channel
};
__device__ __forceinline__ Head head_of(const RopePart& part, const Tile& tile, unsigned index) {
  const auto heads = static_cast<unsigned>(part.heads);
  const unsigned all = static_cast<unsigned>(part.groups) * heads;
  const unsigned token = index / all;
  const unsigned in_token = index % all;
  const unsigned group = part.groups == 1 ? 0 : in_token / heads;
  const unsigned head = in_token - group * heads;
  const Token& place = tile.tokens[token];
  return {token, numerics::rope_offset(part.input, place.position, place.sequence, group, head),
          numerics::rope_offset(part.output, place.position, place.sequence, group, head)};
}

// How threads share heads of `vectors` vectors each: `lanes` of them take one head.
struct Sharing {
  unsigned lanes, slots, lane, slot;

  __device__ __forceinline__ explicit Sharing(unsigned vectors)
      : lanes(vectors < kThreads ? vectors : kThreads),
        slots(kThreads / lanes),
        lane(threadIdx.x % lanes),
        slot(threadIdx.x / lanes) {}
};

// The values of kN pairs from pair `first` of the `half` of a head.
template <bool kAligned, bool kIsInterleaved, class T, int kN>
__device__ __forceinline__ void load_pairs(const T* head, int64_t first, int64_t half,
                                           float (&x)[kN], float (&y)[kN]) {
  if constexpr (kIsInterleaved) {
    float both[2 * kN];
    load_floats<2 * kN, kAligned>(head + 2 * first, both);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      x[i] = both[2 * i];
      y[i] = both[2 * i + 1];
    }
  } else {
    load_floats<kN, kAligned>(head + first, x);
    load_floats<kN, kAligned>(head + half + first, y);
  }
}
template <bool kAligned, bool kIsInterleaved, class T, int kN>
__device__ __forceinline__ void store_pairs(T* head, int64_t first, int64_t half,
                                            const float (&x)[kN], const float (&y)[kN]) {
  if constexpr (kIsInterleaved) {
    float both[2 * kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      both[2 * i] = x[i];
      both[2 * i + 1] = y[i];
    }
    store_floats<2 * kN, kAligned>(head + 2 * first, both);
  } else {
    store_floats<kN, kAligned>(head + first, x);
    store_floats<kN, kAligned>(head + half + first, y);
  }
}

template <int kN>
__device__ __forceinline__ void rotate(const Coefficients<kN>& by, float (&x)[kN], float (&y)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float turned = fmaf(x[i], by.cos_x[i], y[i] * by.sin_x[i]);
    y[i] = fmaf(y[i], by.cos_y[i], x[i] * by.sin_y[i]);
    x[i] = turned;
  }
}

// Pairs [begin, begin + span) of every head of the tile.
template <class T, bool kAligned, bool kIsInterleaved>
__device__ __forceinline__ void rotate_heads(const RopePart& part, const Tile& tile, int64_t begin,
                                             int span, int count) {
  constexpr int kN = kAligned ? kPairs<T, kIsInterleaved> : 1;
  const auto vectors = static_cast<unsigned>(span / kN);
  const Sharing sharing(vectors);
  const unsigned heads = static_cast<unsigned>(count * part.groups * part.heads);
  const int64_t half = part.table.width / 2;
  const T* const input = static_cast<const T*>(part.input.data);
  T* const output = static_cast<T*>(part.output.data);
  for (unsigned vector = sharing.lane; sharing.slot < sharing.slots && vector < vectors;
       vector += sharing.lanes) {
    const unsigned pair = vector * kN;
    Coefficients<kN> coefficients{};
    unsigned loaded = kNoToken;
    for (unsigned index = sharing.slot; index < heads; index += kBatch * sharing.slots) {
      Head head[kBatch];
      float x[kBatch][kN];
      float y[kBatch][kN];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (index + i * sharing.slots < heads) {
          head[i] = head_of(part, tile, index + i * sharing.slots);
          load_pairs<kAligned, kIsInterleaved>(input + head[i].input, begin + pair, half, x[i],
                                               y[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (index + i * sharing.slots < heads) {
          if (head[i].token != loaded) {
            loaded = head[i].token;
            coefficients.template load<kAligned>(tile, loaded * static_cast<unsigned>(span) + pair);
          }
          rotate(coefficients, x[i], y[i]);
          store_pairs<kAligned, kIsInterleaved>(output + head[i].output, begin + pair, half, x[i],
                                                y[i]);
        }
      }
    }
  }
}

// The channels that do not turn.
template <class T, bool kAligned>
__device__ __forceinline__ void copy_rest(const RopePart& part, const Tile& tile, int count) {
  constexpr int kN = kAligned ? kVectorSize<T> : 1;
  const auto vectors = static_cast<unsigned>((part.channels - part.table.width) / kN);
  if (vectors == 0) {
    return;
  }
  const Sharing sharing(vectors);
  const unsigned heads = static_cast<unsigned>(count * part.groups * part.heads);
  for (unsigned index = sharing.slot; sharing.slot < sharing.slots && index < heads;
       index += sharing.slots) {
    const Head head = head_of(part, tile, index);
    const T* const from = static_cast<const T*>(part.input.data) + head.input + part.table.width;
    T* const to = static_cast<T*>(part.output.data) + head.output + part.table.width;
    for (unsigned vector = sharing.lane; vector < vectors; vector += sharing.lanes) {
      Vec<T, kN>::load(from + vector * kN).store(to + vector * kN);
    }
  }
}

template <class T, bool kAligned, bool kIsInterleaved>
__device__ __forceinline__ void rotate_tile(const Problem& problem, Tile& tile, int count) {
  const RopeTable* held = nullptr;  // whose coefficients the tile has, of all pairs
  for (int index = 0; index < problem.args.part_count; ++index) {
    const RopePart& part = problem.args.parts[index];
    const int64_t pairs = part.table.width / 2;
    const bool is_held = held != nullptr && held->angles == part.table.angles &&
                         held->width == part.table.width && held->rows == part.table.rows;
    for (int64_t begin = 0; begin < pairs; begin += kSlots) {
      const int span = static_cast<int>(pairs - begin < kSlots ? pairs - begin : kSlots);
      if (!is_held) {
        __syncthreads();  // nobody reads the coefficients before any more
        compute_coefficients(problem.args, part.table, begin, span, count, tile);
        __syncthreads();
        held = pairs <= kSlots ? &part.table : nullptr;
      }
      rotate_heads<T, kAligned, kIsInterleaved>(part, tile, begin, span, count);
    }
    copy_rest<T, kAligned>(part, tile, count);
  }
}

template <class T, bool kAligned, bool kIsInterleaved>
__global__ void __launch_bounds__(kThreads, 4)
    rope_rotate(const __grid_constant__ Problem problem) {
  __shared__ Tile tile;
  const RopeArgs& args = problem.args;
  const int64_t step = static_cast<int64_t>(gridDim.x) * problem.tile;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * problem.tile; first < problem.tokens;
       first += step) {
    const int64_t left = problem.tokens - first;
    const int count = left < problem.tile ? static_cast<int>(left) : problem.tile;
    if (static_cast<int>(threadIdx.x) < count) {
      const int64_t token = first + threadIdx.x;
      const int64_t position = token / args.batch;
      const int64_t sequence = token - position * args.batch;
      tile.tokens[threadIdx.x] = {
          position, sequence,
          numerics::rope_position(args.placement, args.length, position, sequence)};
    }
    __syncthreads();
    rotate_tile<T, kAligned, kIsInterleaved>(problem, tile, count);
    __syncthreads();  // the next tile uses the memory again
  }
}

// Whether each head of `tensor` begins on 16 bytes.
bool has_aligned_heads(const RopeTensor& tensor, const RopePart& part, const RopeArgs& args) {
  const int64_t unit = 16 / element_size_bytes(args.dtype);
  const auto fits = [&](int64_t size, int64_t stride) { return size <= 1 || stride % unit == 0; };
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 &&
         fits(args.length, tensor.position_stride) && fits(args.batch, tensor.batch_stride) &&
         fits(part.groups, tensor.group_stride) && fits(part.heads, tensor.head_stride);
}
bool has_vectors(const RopePart& part, const RopeArgs& args) {
  const int64_t unit = 16 / element_size_bytes(args.dtype);
  const int64_t pairs = args.is_interleaved ? 4 : unit;
  return part.table.width / 2 % pairs == 0 && part.channels % unit == 0 &&
         has_aligned_heads(part.input, part, args) && has_aligned_heads(part.output, part, args);
}

// Tokens of a tile: as many as give each thread a few vectors, while all multiprocessors have
// several tiles and the coefficients fit.
int tile_of(const RopeArgs& args, int64_t tokens, const Context& context) {
  constexpr int64_t kVectorsPerThread = 2 * kBatch;
  constexpr int64_t kTilesPerMultiprocessor = 8;
  int64_t vectors = 1;
  int64_t pairs = 1;
  for (int index = 0; index < args.part_count; ++index) {
    const RopePart& part = args.parts[index];
    vectors += part.groups * part.heads * part.channels / (2 * kSourceVector);
    pairs = std::max(pairs, part.table.width / 2);
  }
  const int64_t wanted = divide_up<int64_t>(kVectorsPerThread * kThreads, vectors);
  const int64_t multiprocessors = multiprocessor_count(context.device_index);
  const int64_t spread = tokens / (kTilesPerMultiprocessor * multiprocessors);
  return static_cast<int>(
      std::max<int64_t>(std::min({wanted, spread, kSlots / pairs, int64_t{kMaxTokens}}), 1));
}

void run_rope(const RopeArgs& args, const Context& context) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const int64_t tokens = args.length * args.batch;
  if (tokens == 0) {
    return;
  }
  const Problem problem{.args = args, .tokens = tokens, .tile = tile_of(args, tokens, context)};
  const int64_t tiles = divide_up<int64_t>(tokens, problem.tile);
  const Launch config{.name = "rope_rotate",
                      .grid = dim3(static_cast<unsigned>(std::min(tiles, kMostBlocks))),
                      .block = dim3(kThreads),
                      .stream = stream_of(context)};
  const bool is_aligned =
      std::all_of(args.parts, args.parts + args.part_count,
                  [&](const RopePart& part) { return has_vectors(part, args); });
  for_high_precision(args.dtype, [&](auto type) {
    for_bool(is_aligned, [&](auto aligned) {
      for_bool(args.is_interleaved, [&](auto interleaved) {
        launch(&rope_rotate<typename decltype(type)::type, aligned(), interleaved()>, config,
               problem);
      });
    });
  });
}

}  // namespace

TE_CUDA_ENTRY_POINT(RopeArgs, run_rope)

}  // namespace transformer_engine::cuda
