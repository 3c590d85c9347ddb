// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One FP8 attention problem with its tensors on the host, and what comes of it in FP64: by the
// formulas of attention.h, with P and dS rounded to codes by a search among all of them.
#pragma once

#include <transformer_engine/attention.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "helpers/attention_problem.h"
#include "helpers/block_scaled.h"
#include "helpers/formats.h"

namespace transformer_engine::testing {

// The order of all scales, in the tests' memory.
enum class Scale {
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kDescaleO,
  kDescaleGradO,
  kScaleS,
  kDescaleS,
  kScaleDP,
  kDescaleDP,
  kScaleO,
  kScaleGradQ,
  kScaleGradK,
  kScaleGradV,
};
inline constexpr size_t kScales = 13;
using Scales = std::array<float, kScales>;

struct AttentionFp8Case {
  std::string name;
  AttentionProblem problem;  // without batch where lengths are given
  AttentionFp8Types types = {};
  AttentionFormat format = AttentionFormat::kBshd;
  std::vector<int32_t> lengths_q = {}, lengths_kv = {};  // has_lengths
  bool is_interleaved = false;                           // q, k and v are slices of wider rows
  float scale_s = 448.0F, scale_dp = 300.0F;
};

// A tensor of heads of any type of 8 or 16 bits.
class TypedHeads {
 public:
  TypedHeads(const AttentionFp8Case& spec, DType dtype, bool is_query, int64_t heads, int64_t size,
             int64_t spare = 0)
      : dtype_(dtype),
        heads_(heads),
        size_(size),
        is_query_(is_query),
        tensor_(with_dtype(spec.problem, dtype), spec.format, is_query, heads, size, spare) {
    // NaN in every format: it must be overwritten, or not be read.
    std::memset(matrix().data<void>(), 0xFF, matrix().size_bytes());
  }

  DType dtype() const { return dtype_; }
  int64_t heads() const { return heads_; }
  int64_t size() const { return size_; }
  bool is_query() const { return is_query_; }
  HeadsView view() { return tensor_.view(); }
  Matrix& matrix() { return tensor_.matrix(); }

  double get(int64_t b, int64_t h, int64_t token, int64_t d) {
    const int64_t i = index(b, h, token, d);
    return is_fp8(dtype_) ? fp8_description(dtype_).value(matrix().data<uint8_t>()[i])
                          : matrix().get(i);
  }
  void set(int64_t b, int64_t h, int64_t token, int64_t d, double value,
           const NearestCode& nearest) {
    const int64_t i = index(b, h, token, d);
    if (is_fp8(dtype_)) {
      matrix().data<uint8_t>()[i] = static_cast<uint8_t>(nearest.saturating(value));
    } else {
      matrix().set(i, static_cast<float>(value));
    }
  }

 private:
  static AttentionProblem with_dtype(AttentionProblem problem, DType dtype) {
    problem.dtype = dtype;
    return problem;
  }
  int64_t index(int64_t b, int64_t h, int64_t token, int64_t d) {
    const HeadsView view = tensor_.view();
    return b * view.batch_stride + h * view.head_stride + token * view.token_stride + d;
  }
  DType dtype_;
  int64_t heads_, size_;
  bool is_query_;
  HeadsTensor tensor_;
};

class AttentionFp8Tensors {
 public:
  explicit AttentionFp8Tensors(const AttentionFp8Case& spec)
      : spec_(complete(spec)),
        q(spec_, problem().dtype, true, problem().heads, problem().size_qk, spare()),
        k(spec_, problem().dtype, false, problem().groups, problem().size_qk, spare()),
        v(spec_, problem().dtype, false, problem().groups, problem().size_v, spare()),
        o(spec_, spec_.types.o, true, problem().heads, problem().size_v),
        saved_o(spec_, spec.types.saved_o, true, problem().heads, problem().size_v),
        grad_o(spec_, spec.types.grad_o, true, problem().heads, problem().size_v),
        grad_q(spec_, spec.types.grads, true, problem().heads, problem().size_qk),
        grad_k(spec_, spec.types.grads, false, problem().groups, problem().size_qk),
        grad_v(spec_, spec.types.grads, false, problem().groups, problem().size_v),
        statistics(static_cast<size_t>(problem().batch * problem().heads * problem().queries),
                   std::numeric_limits<float>::quiet_NaN()),
        cu_q(cumulative(spec.lengths_q)),
        cu_kv(cumulative(spec.lengths_kv)) {
    uint32_t seed = 0;
    for (TypedHeads* tensor : {&q, &k, &v, &grad_o}) {
      fill(*tensor, ++seed);
    }
    // Products of a few: 1 / scale as a division gives it.
    scales = {0.031F,       0.047F,  0.013F, 1 / 37.0F,         0.0021F,
              spec.scale_s, 0.0F,    0.0F,   1 / spec.scale_dp, 37.0F,
              1900.0F,      2300.0F, 1700.0F};
    scales[static_cast<size_t>(Scale::kDescaleS)] = 1 / spec.scale_s;
    scales[static_cast<size_t>(Scale::kScaleDP)] = spec.scale_dp;
    if (!is_fp8(spec.types.saved_o)) {
      scales[static_cast<size_t>(Scale::kDescaleO)] = 1.0F;
    }
  }

  const AttentionProblem& problem() const { return spec_.problem; }
  const AttentionFp8Case& spec() const { return spec_; }
  double scale(Scale which) const { return scales[static_cast<size_t>(which)]; }
  int64_t length(int64_t b, bool is_query) const {
    const auto& lengths = is_query ? spec_.lengths_q : spec_.lengths_kv;
    return lengths.empty() ? (is_query ? problem().queries : problem().keys)
                           : lengths[static_cast<size_t>(b)];
  }

  // With the scales at `base`, in host memory or a copy of it.
  AttentionFp8ForwardArgs forward_args(const float* base) {
    const auto at = [&](Scale which) { return base + static_cast<size_t>(which); };
    return {.problem = problem(),
            .types = spec_.types,
            .inputs = inputs(),
            .o = o.view(),
            .statistics = problem().has_statistics ? statistics.data() : nullptr,
            .descale_q = at(Scale::kDescaleQ),
            .descale_k = at(Scale::kDescaleK),
            .descale_v = at(Scale::kDescaleV),
            .scale_s = at(Scale::kScaleS),
            .descale_s = at(Scale::kDescaleS),
            .scale_o = is_fp8(spec_.types.o) ? at(Scale::kScaleO) : nullptr,
            .amax = amax.data()};
  }
  AttentionFp8BackwardArgs backward_args(const float* base) {
    const auto at = [&](Scale which) { return base + static_cast<size_t>(which); };
    const bool has_scales = is_fp8(spec_.types.grads);
    return {.problem = problem(),
            .types = spec_.types,
            .inputs = inputs(),
            .o = saved_o.view(),
            .grad_o = grad_o.view(),
            .statistics = statistics.data(),
            .grad_q = grad_q.view(),
            .grad_k = grad_k.view(),
            .grad_v = grad_v.view(),
            .descale_q = at(Scale::kDescaleQ),
            .descale_k = at(Scale::kDescaleK),
            .descale_v = at(Scale::kDescaleV),
            .descale_o = is_fp8(spec_.types.saved_o) ? at(Scale::kDescaleO) : nullptr,
            .descale_grad_o = at(Scale::kDescaleGradO),
            .scale_s = at(Scale::kScaleS),
            .descale_s = at(Scale::kDescaleS),
            .scale_dp = at(Scale::kScaleDP),
            .descale_dp = at(Scale::kDescaleDP),
            .scale_grad_q = has_scales ? at(Scale::kScaleGradQ) : nullptr,
            .scale_grad_k = has_scales ? at(Scale::kScaleGradK) : nullptr,
            .scale_grad_v = has_scales ? at(Scale::kScaleGradV) : nullptr,
            .amax = amax.data()};
  }

 private:
  AttentionInputs inputs() {
    AttentionInputs all;
    all.q = q.view();
    all.k = k.view();
    all.v = v.view();
    if (problem().has_lengths) {
      all.sequences.cu_q = cu_q.data();
      all.sequences.cu_kv = cu_kv.data();
    }
    return all;
  }
  // Numbers for the tokens of sequences; what lies beyond stays NaN.
  void fill(TypedHeads& tensor, uint32_t seed) const {
    const NearestCode nearest(fp8_description(tensor.dtype()));
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0.0, 60.0);
    for (int64_t b = 0; b < problem().batch; ++b) {
      for (int64_t token = 0; token < length(b, tensor.is_query()); ++token) {
        for (int64_t h = 0; h < tensor.heads(); ++h) {
          for (int64_t d = 0; d < tensor.size(); ++d) {
            tensor.set(b, h, token, d, normal(generator), nearest);
          }
        }
      }
    }
  }
  int64_t spare() const { return spec_.is_interleaved ? 48 : 0; }
  static std::vector<int32_t> cumulative(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> sums(lengths.size() + 1, 0);
    std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
    return sums;
  }
  static AttentionFp8Case complete(AttentionFp8Case spec) {
    if (!spec.lengths_q.empty()) {
      spec.problem.has_lengths = true;
      spec.problem.batch = static_cast<int64_t>(spec.lengths_q.size());
    }
    return spec;
  }
  AttentionFp8Case spec_;

 public:
  TypedHeads q, k, v, o, saved_o, grad_o, grad_q, grad_k, grad_v;
  std::vector<float> statistics;  // [batch, heads, queries]
  std::vector<int32_t> cu_q, cu_kv;
  Scales scales{};
  std::array<float, 4> amax = {1e30F, 1e30F, 1e30F, 1e30F};  // to be overwritten
};

// A tensor of heads in FP64, before it is stored: [batch, heads, tokens, size].
struct ExactHeads {
  int64_t heads, tokens, size;
  std::vector<double> data;
  double largest_term = 0.0;

  ExactHeads(int64_t batch, int64_t heads_of, int64_t tokens_of, int64_t size_of)
      : heads(heads_of),
        tokens(tokens_of),
        size(size_of),
        data(static_cast<size_t>(batch * heads * tokens * size), 0.0) {}
  double& at(int64_t b, int64_t h, int64_t token, int64_t d) {
    return data[static_cast<size_t>(((b * heads + h) * tokens + token) * size + d)];
  }
  void add(double& sum, double term) {
    sum += term;
    largest_term = std::fmax(largest_term, std::abs(term));
  }
  double amax() const {
    double most = 0.0;
    for (const double x : data) {
      most = std::fmax(most, std::abs(x));
    }
    return most;
  }
};

class AttentionFp8Reference {
 public:
  explicit AttentionFp8Reference(AttentionFp8Tensors& tensors)
      : tensors_(tensors),
        problem_(tensors.problem()),
        o(problem_.batch, problem_.heads, problem_.queries, problem_.size_v),
        statistics(problem_.batch, problem_.heads, problem_.queries, 1),
        grad_q(problem_.batch, problem_.heads, problem_.queries, problem_.size_qk),
        grad_k(problem_.batch, problem_.groups, problem_.keys, problem_.size_qk),
        grad_v(problem_.batch, problem_.groups, problem_.keys, problem_.size_v) {}

  void forward() {
    for_each_row([&](int64_t b, int64_t h, int64_t i) {
      std::vector<double> row = scores(b, h, i);
      double most = -HUGE_VAL;
      for (const double s : row) {
        most = std::fmax(most, s);
      }
      double sum = 0.0;
      for (const double s : row) {
        sum += std::exp(s - most);
      }
      statistics.at(b, h, i, 0) = most + std::log(sum);
      for (int64_t j = 0; j < static_cast<int64_t>(row.size()); ++j) {
        const double p = std::exp(row[static_cast<size_t>(j)] - most) / sum;
        amax_s = std::fmax(amax_s, p);
        const double p8 = rounded(p * scale(Scale::kScaleS), problem_.dtype);
        for (int64_t d = 0; d < problem_.size_v; ++d) {
          o.add(o.at(b, h, i, d), scale(Scale::kDescaleS) * scale(Scale::kDescaleV) * p8 *
                                      tensors_.v.get(b, group(h), j, d));
        }
      }
    });
  }

  // From the tensors' saved O and statistics.
  void backward() {
    for_each_row([&](int64_t b, int64_t h, int64_t i) {
      const std::vector<double> row = scores(b, h, i);
      const auto at = static_cast<size_t>((b * problem_.heads + h) * problem_.queries + i);
      const double log_sum = tensors_.statistics[at];
      double delta = 0.0;
      for (int64_t d = 0; d < problem_.size_v; ++d) {
        delta += tensors_.grad_o.get(b, h, i, d) * tensors_.saved_o.get(b, h, i, d);
      }
      delta *= scale(Scale::kDescaleGradO) * scale(Scale::kDescaleO);
      for (int64_t j = 0; j < static_cast<int64_t>(row.size()); ++j) {
        add_pair(b, h, i, j, std::exp(row[static_cast<size_t>(j)] - log_sum), delta);
      }
    });
  }

 private:
  double scale(Scale which) const { return tensors_.scale(which); }
  int64_t group(int64_t h) const { return h / (problem_.heads / problem_.groups); }
  static double rounded(double x, DType dtype) {
    static const NearestCode e4m3(kE4M3);
    static const NearestCode e5m2(kE5M2);
    return fp8_description(dtype).value((dtype == DType::kFloat8E4M3 ? e4m3 : e5m2).saturating(x));
  }
  template <typename Body>
  void for_each_row(const Body& body) {
    for (int64_t b = 0; b < problem_.batch; ++b) {
      for (int64_t h = 0; h < problem_.heads; ++h) {
        for (int64_t i = 0; i < tensors_.length(b, true); ++i) {
          if (visible(b, i) > 0) {
            body(b, h, i);
          }
        }
      }
    }
  }
  // The keys that query i sees: the first so many.
  int64_t visible(int64_t b, int64_t i) const {
    const int64_t keys = tensors_.length(b, false);
    if (problem_.right < 0) {
      return keys;
    }
    const int64_t shift = problem_.is_bottom_right ? keys - tensors_.length(b, true) : 0;
    return std::clamp<int64_t>(i + shift + 1, 0, keys);
  }
  std::vector<double> scores(int64_t b, int64_t h, int64_t i) {
    std::vector<double> row(static_cast<size_t>(visible(b, i)));
    for (size_t j = 0; j < row.size(); ++j) {
      double sum = 0.0;
      for (int64_t d = 0; d < problem_.size_qk; ++d) {
        sum += tensors_.q.get(b, h, i, d) * tensors_.k.get(b, group(h), static_cast<int64_t>(j), d);
      }
      row[j] = static_cast<double>(problem_.scale) * scale(Scale::kDescaleQ) *
               scale(Scale::kDescaleK) * sum;
      largest_score = std::fmax(largest_score, std::abs(row[j]));
    }
    return row;
  }
  void add_pair(int64_t b, int64_t h, int64_t i, int64_t j, double p, double delta) {
    const int64_t g = group(h);
    const double p8 = rounded(p * scale(Scale::kScaleS), problem_.dtype);
    double dp = 0.0;
    for (int64_t d = 0; d < problem_.size_v; ++d) {
      dp += tensors_.grad_o.get(b, h, i, d) * tensors_.v.get(b, g, j, d);
      grad_v.add(grad_v.at(b, g, j, d), scale(Scale::kDescaleS) * scale(Scale::kDescaleGradO) * p8 *
                                            tensors_.grad_o.get(b, h, i, d));
    }
    dp *= scale(Scale::kDescaleGradO) * scale(Scale::kDescaleV);
    largest_dp = std::fmax(largest_dp, std::abs(dp) + std::abs(delta));
    const double ds = static_cast<double>(problem_.scale) * p * (dp - delta);
    amax_dp = std::fmax(amax_dp, std::abs(ds));
    const double ds8 = rounded(ds * scale(Scale::kScaleDP), tensors_.spec().types.grad_o);
    for (int64_t d = 0; d < problem_.size_qk; ++d) {
      grad_q.add(grad_q.at(b, h, i, d), scale(Scale::kDescaleDP) * scale(Scale::kDescaleK) * ds8 *
                                            tensors_.k.get(b, g, j, d));
      grad_k.add(grad_k.at(b, g, j, d), scale(Scale::kDescaleDP) * scale(Scale::kDescaleQ) * ds8 *
                                            tensors_.q.get(b, h, i, d));
    }
  }

  AttentionFp8Tensors& tensors_;
  const AttentionProblem& problem_;

 public:
  ExactHeads o, statistics, grad_q, grad_k, grad_v;
  double amax_s = 0.0, amax_dp = 0.0;
  double largest_score = 0.0, largest_dp = 0.0;
};

// Relative to the largest term: sums of so many terms in FP64, in another order.
inline double order_roundoff(const AttentionProblem& problem) {
  return static_cast<double>(problem.queries + problem.keys) *
         static_cast<double>(problem.size_qk + problem.size_v) *
         static_cast<double>(problem.heads / problem.groups) * 0x1p-50;
}

// Every element is what the exact one, give or take the order of its sum, rounds to: of FP8, by a
// rounding to FP32 before that to a code. Tokens of no sequence are 0.
inline ::testing::AssertionResult is_stored(TypedHeads& got, ExactHeads& exact, double scale,
                                            double order) {
  const Format& format = fp8_description(got.dtype());
  const NearestCode nearest(format);
  const int64_t batch = static_cast<int64_t>(exact.data.size()) /
                        std::max<int64_t>(1, exact.heads * exact.tokens * exact.size);
  const double slack = exact.largest_term * order;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < exact.heads; ++h) {
      for (int64_t token = 0; token < exact.tokens; ++token) {
        for (int64_t d = 0; d < exact.size; ++d) {
          const double value = got.get(b, h, token, d);
          const double x = exact.at(b, h, token, d);
          bool is_right = false;
          if (is_fp8(got.dtype())) {
            const double width = std::abs(x * scale) * kFloatRoundoff + slack * scale;
            is_right = format.value(nearest.saturating(x * scale - width)) <= value &&
                       value <= format.value(nearest.saturating(x * scale + width));
          } else {
            is_right = is_close(value, {x, slack}, got.dtype());
          }
          if (!is_right) {
            return ::testing::AssertionFailure()
                   << "[" << b << ", " << h << ", " << token << ", " << d << "] is " << value
                   << ", expected " << x << " times " << scale;
          }
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace transformer_engine::testing
