// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One attention problem with its tensors on the host.
#pragma once

#include <transformer_engine/attention.h>

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "helpers/closeness.h"

namespace transformer_engine::testing {

enum class AttentionFormat { kSbhd, kBshd, kThd };

struct AttentionCase {
  std::string name;
  AttentionProblem problem;  // without batch and tokens where lengths are given
  AttentionFormat format = AttentionFormat::kBshd;
  std::vector<int32_t> lengths_q = {}, lengths_kv = {};  // has_lengths; a slot is `gap` longer
  int32_t gap = 0;                                       // packed
  bool is_interleaved = false;                           // q, k and v are slices of wider rows
  bool has_grad_bias = false;
};

// A tensor of heads: rows of tokens.
class HeadsTensor {
 public:
  HeadsTensor(const AttentionProblem& problem, AttentionFormat format, bool is_query, int64_t heads,
              int64_t size, int64_t spare = 0)
      : matrix_(problem.dtype, rows_of(problem, is_query), heads * size + spare) {
    const int64_t row = heads * size + spare;
    const int64_t tokens = is_query ? problem.queries : problem.keys;
    view_.head_stride = size;
    view_.token_stride = format == AttentionFormat::kSbhd ? problem.batch * row : row;
    view_.batch_stride = format == AttentionFormat::kSbhd   ? row
                         : format == AttentionFormat::kBshd ? tokens * row
                                                            : 0;
  }
  Matrix& matrix() { return matrix_; }
  HeadsView view() {
    HeadsView view = view_;
    view.data = matrix_.data<void>();
    return view;
  }

 private:
  static int64_t rows_of(const AttentionProblem& problem, bool is_query) {
    if (problem.is_packed) {
      return is_query ? problem.tokens_q : problem.tokens_kv;
    }
    return problem.batch * (is_query ? problem.queries : problem.keys);
  }
  Matrix matrix_;
  HeadsView view_;
};

// Everything of a forward and a backward. Results hold NaN until they are written.
class AttentionTensors {
 public:
  explicit AttentionTensors(const AttentionCase& spec, uint32_t seed = 1)
      : spec_(complete(spec)),
        q(problem(), spec.format, true, problem().heads, problem().size_qk, spare()),
        k(problem(), spec.format, false, problem().groups, problem().size_qk, spare()),
        v(problem(), spec.format, false, problem().groups, problem().size_v, spare()),
        o(problem(), spec.format, true, problem().heads, problem().size_v),
        grad_o(problem(), spec.format, true, problem().heads, problem().size_v),
        grad_q(problem(), spec.format, true, problem().heads, problem().size_qk),
        grad_k(problem(), spec.format, false, problem().groups, problem().size_qk),
        grad_v(problem(), spec.format, false, problem().groups, problem().size_v),
        bias(problem().dtype, bias_rows(), problem().keys),
        grad_bias(problem().dtype, bias_rows(), problem().keys),
        statistics(DType::kFloat32,
                   problem().is_packed ? problem().tokens_q : problem().batch * problem().queries,
                   problem().heads) {
    uint32_t number = seed;
    for (HeadsTensor* tensor : {&q, &k, &v, &grad_o}) {
      fill_normal(tensor->matrix(), ++number);
    }
    fill_normal(bias, ++number);
    for (Matrix* result : {&o.matrix(), &grad_q.matrix(), &grad_k.matrix(), &grad_v.matrix(),
                           &grad_bias, &statistics}) {
      for (int64_t i = 0; i < result->numel(); ++i) {
        result->set(i, std::numeric_limits<float>::quiet_NaN());
      }
    }
    cu_q = cumulative(spec_.lengths_q, 0);
    cu_kv = cumulative(spec_.lengths_kv, 0);
    first_q = cumulative(spec_.lengths_q, spec_.gap);
    first_kv = cumulative(spec_.lengths_kv, spec_.gap);
    seed_number = static_cast<int64_t>(seed) * 0x123456789;
  }

  const AttentionProblem& problem() const { return spec_.problem; }
  const AttentionCase& spec() const { return spec_; }

  AttentionForwardArgs forward_args() {
    return {.problem = problem(),
            .inputs = inputs(),
            .o = o.view(),
            .statistics = problem().has_statistics ? statistics.data<float>() : nullptr};
  }
  AttentionBackwardArgs backward_args() {
    return {.problem = problem(),
            .inputs = inputs(),
            .o = o.view(),
            .grad_o = grad_o.view(),
            .statistics = statistics.data<float>(),
            .grad_q = grad_q.view(),
            .grad_k = grad_k.view(),
            .grad_v = grad_v.view(),
            .grad_bias = spec_.has_grad_bias ? bias_view(grad_bias) : HeadsView{}};
  }

 private:
  AttentionInputs inputs() {
    AttentionInputs all{.q = q.view(),
                        .k = k.view(),
                        .v = v.view(),
                        .bias = {},
                        .sequences = {},
                        .seed = nullptr,
                        .offset = nullptr};
    if (problem().has_bias) {
      all.bias = bias_view(bias);
    }
    if (problem().has_lengths) {
      all.sequences.cu_q = cu_q.data();
      all.sequences.cu_kv = cu_kv.data();
    }
    if (problem().is_packed && spec_.gap != 0) {
      all.sequences.first_q = first_q.data();
      all.sequences.first_kv = first_kv.data();
    }
    if (problem().dropout > 0.0F) {
      all.seed = &seed_number;
      all.offset = &offset_number;
    }
    return all;
  }
  HeadsView bias_view(Matrix& matrix) const {
    const int64_t rows = problem().queries * problem().keys;
    return {matrix.data<void>(), problem().bias_heads * rows, rows, problem().keys};
  }
  int64_t bias_rows() const {
    return problem().has_bias ? problem().bias_batch * problem().bias_heads * problem().queries : 0;
  }
  int64_t spare() const { return spec_.is_interleaved ? 16 : 0; }

  static std::vector<int32_t> cumulative(const std::vector<int32_t>& lengths, int32_t gap) {
    std::vector<int32_t> all{0};
    for (const int32_t length : lengths) {
      all.push_back(all.back() + length + gap);
    }
    return all;
  }
  static AttentionCase complete(AttentionCase spec) {
    AttentionProblem& problem = spec.problem;
    if (!spec.lengths_q.empty()) {
      problem.batch = static_cast<int64_t>(spec.lengths_q.size());
      problem.has_lengths = true;
      problem.is_packed = spec.format == AttentionFormat::kThd;
    }
    if (problem.is_packed) {  // and two rows behind the last slot
      problem.tokens_q = cumulative(spec.lengths_q, spec.gap).back() + 2;
      problem.tokens_kv = cumulative(spec.lengths_kv, spec.gap).back() + 2;
    }
    problem.bias_batch = problem.bias_batch == 0 ? problem.batch : problem.bias_batch;
    problem.bias_heads = problem.bias_heads == 0 ? problem.heads : problem.bias_heads;
    return spec;
  }

  AttentionCase spec_;

 public:
  HeadsTensor q, k, v, o, grad_o, grad_q, grad_k, grad_v;
  Matrix bias, grad_bias, statistics;
  std::vector<int32_t> cu_q, cu_kv, first_q, first_kv;
  int64_t seed_number = 0, offset_number = 77;
};

// The same numbers up to the rounding of the result, of which either may be on the other side of
// a tie, and FP64's in sums of `terms` numbers of about `size`.
inline ::testing::AssertionResult same_but_rounding(Matrix& got, Matrix& expected, double terms,
                                                    double size) {
  std::vector<Expected> bounds(static_cast<size_t>(expected.numel()));
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const double value = expected.get(i);
    bounds[static_cast<size_t>(i)] = {
        value, unit_roundoff(expected.view().dtype) * std::abs(value) + terms * size * 0x1p-50};
  }
  return all_close(got, bounds);
}

}  // namespace transformer_engine::testing
