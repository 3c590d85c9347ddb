// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs of elements for multi_tensor.h. The optimizers apply the rules of numerics/ to vectors. Each
// element is read and written once, so that memory bounds the speed: 28 bytes an element for a step
// of Adam in FP32.
#include "cpu/multi_tensor_kernels.h"

#include "cpu/simd/fp8.h"
#include "cpu/simd/rows.h"
#include "cpu/simd/stores.h"
#include "cpu/simd/words.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

template <typename Rows>
TE_INLINE Rows rows_of(const Run& run) {
  return Rows(run.data, run.dtype, 0);
}

// ---- scale and norm

// Bits of the magnitude, all set where they are Inf's or NaN's: x - x is 0 for finite x, else NaN.
bool scale(const Run& input, const Run& output, float factor, int64_t count) {
  const AnyRows in = rows_of<AnyRows>(input);
  const AnyRows out = rows_of<AnyRows>(output);
  Vf difference = zero();  // of each element and itself
  for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
    const Vf x = in.get(i, lanes);
    difference += x - x;
    out.put(i, x * set1(factor), lanes);
  });
  return !any(is_nan(difference));
}

template <typename T>
float sum_of_squares(const void* input, float inv_scale, int64_t count) {
  const T* x = static_cast<const T*>(input);
  const Vf factor = set1(inv_scale);
  LaneSum<kRowLanes> sum;
  for_lanes<kRowLanes>(count, [&](int64_t i, int part, auto lanes) TE_INLINE_LAMBDA {
    // Lanes beyond the end hold 0, which an infinite factor would make NaN.
    const Vf value = keep(load(x + i, lanes) * factor, lanes);
    sum.part[part] = fma(value, value, sum.part[part]);
  });
  return sum.total();
}

// ---- Adam

template <typename V>
TE_INLINE numerics::AdamNumbers<V> splat_all(const numerics::AdamNumbers<float>& n) {
  return {.beta1 = splat<V>(n.beta1),
          .one_minus_beta1 = splat<V>(n.one_minus_beta1),
          .beta2 = splat<V>(n.beta2),
          .one_minus_beta2 = splat<V>(n.one_minus_beta2),
          .correction1 = splat<V>(n.correction1),
          .correction2 = splat<V>(n.correction2),
          .epsilon = splat<V>(n.epsilon),
          .weight_decay = splat<V>(n.weight_decay),
          .minus_lr = splat<V>(n.minus_lr)};
}

// Where the precise value of the parameters is, and what is stored of it. Types::Param are rows.
template <typename Param>
struct PlainWeight {
  Param param;
  TE_INLINE explicit PlainWeight(const AdamRun& run) : param(rows_of<Param>(run.param)) {}
  template <typename Count>
  TE_INLINE auto get(int64_t i, Count count) const {
    return param.get(i, count);
  }
  template <typename V, typename Count>
  TE_INLINE void put(int64_t i, V value, Count count) {
    param.put(i, value, count);
  }
  TE_INLINE float amax() const { return 0.0F; }
};

template <typename Param>
struct MasterWeight {
  Param param;
  float* master;
  TE_INLINE explicit MasterWeight(const AdamRun& run)
      : param(rows_of<Param>(run.param)), master(run.master) {}
  template <typename Count>
  TE_INLINE auto get(int64_t i, Count count) const {
    return load(static_cast<const float*>(master) + i, count);
  }
  template <typename V, typename Count>
  TE_INLINE void put(int64_t i, V value, Count count) {
    store(master + i, value, count);
    param.put(i, value, count);
  }
  TE_INLINE float amax() const { return 0.0F; }
};

TE_INLINE int64_t lanes_of(AllLanes) { return kWidth; }
TE_INLINE int64_t lanes_of(int64_t count) { return count; }

// numerics/remainder.h in vectors. The halves are moved as integers: storing one as BF16 would
// change some that look like NaN.
template <typename Param>
struct RemainderWeight {
  Bf16* param;
  int16_t* remainder;
  TE_INLINE explicit RemainderWeight(const AdamRun& run)
      : param(static_cast<Bf16*>(run.param.data)), remainder(run.remainder) {}
  template <typename Count>
  TE_INLINE Vf get(int64_t i, Count count) const {
    const auto* low_halves = reinterpret_cast<const Bf16*>(remainder) + i;
    const Vi low = shift_right_logical<16>(as_int(load(low_halves, count)));
    const Vi high = as_int(load(static_cast<const Bf16*>(param) + i, count));
    return as_float((high - shift_left<1>(low & set1_int(0x8000))) | low);
  }
  template <typename Count>
  TE_INLINE void put(int64_t i, Vf value, Count count) {
    const Vf quiet = as_float(set1_int(static_cast<int32_t>(numerics::kFloatQuietNaN)));
    const Vi bits = as_int(select(is_nan(value), quiet, value));
    const Vi nearest = bits + shift_left<1>(bits & set1_int(0x8000));
    store_words(remainder + i, bits, count);
    store_words(param + i, shift_right_logical<16>(nearest), count);
  }
  TE_INLINE float amax() const { return 0.0F; }
};

template <typename Param>
struct Fp8Weight {
  uint8_t* codes;
  bool is_e5m2;
  float* master;
  Vf scale;
  Vf largest = zero();
  TE_INLINE explicit Fp8Weight(const AdamRun& run)
      : codes(static_cast<uint8_t*>(run.param.data)),
        is_e5m2(run.param.dtype == DType::kFloat8E5M2),
        master(run.master),
        scale(set1(run.fp8_scale)) {}
  template <typename Count>
  TE_INLINE Vf get(int64_t i, Count count) const {
    return load(static_cast<const float*>(master) + i, count);
  }
  template <typename Count>
  TE_INLINE void put(int64_t i, Vf value, Count count) {
    store(master + i, value, count);
    largest = max_abs(keep(value, count), largest);
    const Vf scaled = value * scale;
    if (is_e5m2) {
      encode_store<numerics::E5M2>(codes + i, scaled, lanes_of(count));
    } else {
      encode_store<numerics::E4M3>(codes + i, scaled, lanes_of(count));
    }
  }
  TE_INLINE float amax() const { return reduce_max(largest); }
};

// Rows of the gradient, the moments and the parameters.
struct Floats {
  using Grad = RowsOf<float>;
  using Moment = RowsOf<float>;
  using Param = RowsOf<float>;
};
struct Bf16Params {
  using Grad = RowsOf<Bf16>;
  using Moment = RowsOf<float>;
  using Param = RowsOf<Bf16>;
};
struct AnyTypes {
  using Grad = AnyRows;
  using Moment = AnyRows;
  using Param = AnyRows;
};

template <template <typename> class Weight, typename Types, bool kDecoupled>
float adam(const AdamRun& run, const numerics::AdamNumbers<float>& numbers) {
  const auto grad = rows_of<typename Types::Grad>(run.grad);
  const auto exp_avg = rows_of<typename Types::Moment>(run.exp_avg);
  const auto exp_avg_sq = rows_of<typename Types::Moment>(run.exp_avg_sq);
  Weight<typename Types::Param> weight(run);
  const auto n = splat_all<Vf>(numbers);
  const Vf inv_scale = set1(run.inv_scale);
  for_lanes<kWidth>(run.count, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    Vf m = exp_avg.get(i, count);
    Vf v = exp_avg_sq.get(i, count);
    Vf p = weight.get(i, count);
    numerics::adam_update<kDecoupled>(n, grad.get(i, count) * inv_scale, p, m, v);
    exp_avg.put(i, m, count);
    exp_avg_sq.put(i, v, count);
    weight.put(i, p, count);
  });
  return weight.amax();
}

// ---- SGD

// Asks for what comes later in an array: 8 % of a step whose tensors no cache holds. (A step of
// Adam does not gain: it computes longer.)
template <typename T>
TE_INLINE void ask_ahead(const RowsOf<T>& rows, int64_t i) {
  constexpr int64_t kAheadBytes = 2048;
  prefetch_bytes<3>(rows.data + i, kAheadBytes, kWidth * int64_t{sizeof(T)});
}
TE_INLINE void ask_ahead(const AnyRows&, int64_t) {}

template <typename Rows>
void sgd(const SgdRun& run, const numerics::SgdNumbers<float>& numbers,
         const numerics::SgdRule& all) {
  const numerics::SgdRule rule = all;  // which stores could change, for all that the compiler knows
  const Rows grad = rows_of<Rows>(run.grad);
  const Rows param = rows_of<Rows>(run.param);
  const Rows momentum = rows_of<Rows>(run.momentum);
  const AnyRows copy = rows_of<AnyRows>(run.copy);
  const numerics::SgdNumbers<Vf> n{.scale = set1(numbers.scale),
                                   .weight_decay = set1(numbers.weight_decay),
                                   .momentum = set1(numbers.momentum),
                                   .one_minus_dampening = set1(numbers.one_minus_dampening),
                                   .minus_lr = set1(numbers.minus_lr)};
  for_lanes<kWidth>(run.count, [&](int64_t i, int, auto count) TE_INLINE_LAMBDA {
    ask_ahead(grad, i);
    ask_ahead(param, i);
    if (rule.has_momentum) {
      ask_ahead(momentum, i);
    }
    Vf p = param.get(i, count);
    Vf buffer = rule.has_momentum ? momentum.get(i, count) : zero();
    numerics::sgd_update(n, rule, grad.get(i, count), p, buffer);
    param.put(i, p, count);
    if (rule.has_momentum) {
      momentum.put(i, buffer, count);
    }
    if (copy.data != nullptr) {
      copy.put(i, p, count);
    }
  });
}

}  // namespace

#define TE_ADAM_MODES(Weight, Types) {adam<Weight, Types, false>, adam<Weight, Types, true>}

extern const MultiTensorKernels multi_tensor_kernels = {
    .scale = scale,
    .sum_of_squares = {sum_of_squares<float>, sum_of_squares<Bf16>, sum_of_squares<Fp16>},
    .adam = {{TE_ADAM_MODES(PlainWeight, Floats), TE_ADAM_MODES(PlainWeight, Bf16Params),
              TE_ADAM_MODES(PlainWeight, AnyTypes)},
             {TE_ADAM_MODES(MasterWeight, Floats), TE_ADAM_MODES(MasterWeight, Bf16Params),
              TE_ADAM_MODES(MasterWeight, AnyTypes)},
             {TE_ADAM_MODES(RemainderWeight, AnyTypes), TE_ADAM_MODES(RemainderWeight, Bf16Params),
              TE_ADAM_MODES(RemainderWeight, AnyTypes)},
             {TE_ADAM_MODES(Fp8Weight, AnyTypes), TE_ADAM_MODES(Fp8Weight, AnyTypes),
              TE_ADAM_MODES(Fp8Weight, AnyTypes)}},
    .sgd = {sgd<RowsOf<float>>, sgd<RowsOf<Bf16>>, sgd<RowsOf<Fp16>>, sgd<AnyRows>},
};

#undef TE_ADAM_MODES

}  // namespace transformer_engine::cpu::TE_ISA
