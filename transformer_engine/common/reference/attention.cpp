// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "numerics/philox.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// One sequence of the batch.
struct Sequence {
  int64_t index = 0;
  int64_t queries = 0, keys = 0;      // its tokens
  int64_t first_q = 0, first_kv = 0;  // packed: the rows of its first ones
};

Sequence sequence_of(const AttentionProblem& problem, const AttentionSequences& all, int64_t b) {
  Sequence sequence{.index = b, .queries = problem.queries, .keys = problem.keys};
  if (problem.has_lengths) {
    sequence.queries = all.cu_q[b + 1] - all.cu_q[b];
    sequence.keys = all.cu_kv[b + 1] - all.cu_kv[b];
  }
  if (problem.is_packed) {
    sequence.first_q = (all.first_q != nullptr ? all.first_q : all.cu_q)[b];
    sequence.first_kv = (all.first_kv != nullptr ? all.first_kv : all.cu_kv)[b];
  }
  return sequence;
}

// The tokens of one sequence in a tensor.
class Rows {
 public:
  Rows(const HeadsView& view, DType dtype, const AttentionProblem& problem, int64_t b,
       int64_t first_token)
      : memory_{.data = view.data, .dtype = dtype},
        view_(view),
        start_(problem.is_packed ? first_token * view.token_stride : b * view.batch_stride) {}

  double get(int64_t head, int64_t token, int64_t i) const {
    return load_float(memory_, index(head, token, i));
  }
  void set(int64_t head, int64_t token, int64_t i, double value) const {
    store_float(memory_, index(head, token, i), static_cast<float>(value));
  }

 private:
  int64_t index(int64_t head, int64_t token, int64_t i) const {
    return start_ + head * view_.head_stride + token * view_.token_stride + i;
  }
  TensorView memory_;
  HeadsView view_;
  int64_t start_;
};

bool is_visible(const AttentionProblem& problem, const Sequence& sequence, int64_t i, int64_t j) {
  const int64_t diagonal = i + (problem.is_bottom_right ? sequence.keys - sequence.queries : 0);
  return (problem.left < 0 || j >= diagonal - problem.left) &&
         (problem.right < 0 || j <= diagonal + problem.right);
}

// One head of one sequence.
class Head {
 public:
  Head(const AttentionProblem& problem, const AttentionInputs& inputs, const Sequence& sequence,
       int64_t head)
      : problem_(problem),
        inputs_(inputs),
        sequence_(sequence),
        head_(head),
        group_(head / (problem.heads / problem.groups)),
        q_(inputs.q, problem.dtype, problem, sequence.index, sequence.first_q),
        k_(inputs.k, problem.dtype, problem, sequence.index, sequence.first_kv),
        v_(inputs.v, problem.dtype, problem, sequence.index, sequence.first_kv),
        bias_{.data = inputs.bias.data, .dtype = problem.dtype},
        bias_start_((problem.bias_batch > 1 ? sequence.index * inputs.bias.batch_stride : 0) +
                    (problem.bias_heads > 1 ? head * inputs.bias.head_stride : 0)),
        bias_stride_(inputs.bias.token_stride) {}

  int64_t group() const { return group_; }
  double q(int64_t i, int64_t d) const { return q_.get(head_, i, d); }
  double k(int64_t j, int64_t d) const { return k_.get(group_, j, d); }
  double v(int64_t j, int64_t d) const { return v_.get(group_, j, d); }
  bool sees(int64_t i, int64_t j) const { return is_visible(problem_, sequence_, i, j); }
  double score(int64_t i, int64_t j) const {
    double product = 0.0;
    for (int64_t d = 0; d < problem_.size_qk; ++d) {
      product += q(i, d) * k(j, d);
    }
    const double bias =
        problem_.has_bias ? load_float(bias_, bias_start_ + i * bias_stride_ + j) : 0.0;
    return static_cast<double>(problem_.scale) * product + bias;
  }
  double factor(int64_t i, int64_t j) const {
    const int64_t row = (sequence_.index * problem_.heads + head_) * problem_.queries + i;
    return dropout_factor(problem_, inputs_, row * problem_.keys + j);
  }
  // L_i
  double log_sum(int64_t i) const {
    double largest = kNothing;
    for (int64_t j = 0; j < sequence_.keys; ++j) {
      largest = sees(i, j) ? std::fmax(largest, score(i, j)) : largest;
    }
    double sum = 0.0;
    for (int64_t j = 0; j < sequence_.keys; ++j) {
      sum += sees(i, j) ? std::exp(score(i, j) - largest) : 0.0;
    }
    return largest == kNothing ? kNothing : largest + std::log(sum);
  }

 private:
  const AttentionProblem& problem_;
  const AttentionInputs& inputs_;
  const Sequence& sequence_;
  int64_t head_, group_;
  Rows q_, k_, v_;
  TensorView bias_;
  int64_t bias_start_, bias_stride_;
};

void clear(const HeadsView& view, const AttentionProblem& problem, int64_t heads, int64_t tokens,
           int64_t size) {
  const int64_t sequences = problem.is_packed ? 1 : problem.batch;
  for (int64_t b = 0; b < sequences; ++b) {
    const Rows rows(view, problem.dtype, problem, b, 0);
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t i = 0; i < size; ++i) {
          rows.set(head, token, i, 0.0);
        }
      }
    }
  }
}

int64_t statistics_index(const AttentionProblem& problem, const Sequence& sequence, int64_t head,
                         int64_t i) {
  return problem.is_packed ? (sequence.first_q + i) * problem.heads + head
                           : (sequence.index * problem.heads + head) * problem.queries + i;
}

void forward_row(const AttentionForwardArgs& args, const Sequence& sequence, int64_t head,
                 int64_t i) {
  const AttentionProblem& problem = args.problem;
  const Head row(problem, args.inputs, sequence, head);
  const double log_sum = row.log_sum(i);
  if (args.statistics != nullptr) {
    args.statistics[statistics_index(problem, sequence, head, i)] = static_cast<float>(log_sum);
  }
  std::vector<double> sums(static_cast<size_t>(problem.size_v));
  for (int64_t j = 0; j < sequence.keys; ++j) {
    if (row.sees(i, j)) {
      const double weight = std::exp(row.score(i, j) - log_sum) * row.factor(i, j);
      for (int64_t d = 0; d < problem.size_v; ++d) {
        sums[static_cast<size_t>(d)] += weight * row.v(j, d);
      }
    }
  }
  const Rows o(args.o, problem.dtype, problem, sequence.index, sequence.first_q);
  for (int64_t d = 0; d < problem.size_v; ++d) {
    o.set(head, i, d, sums[static_cast<size_t>(d)]);
  }
}

// Sums of gradients over the heads of a group: [keys, size] each.
struct KeyGradients {
  std::vector<double> k, v;
};

class BiasGradient {
 public:
  explicit BiasGradient(const AttentionBackwardArgs& args)
      : args_(args),
        sums_(args.grad_bias.data == nullptr
                  ? 0
                  : static_cast<size_t>(args.problem.bias_batch * args.problem.bias_heads *
                                        args.problem.queries * args.problem.keys)) {}
  void add(int64_t b, int64_t head, int64_t i, int64_t j, double value) {
    if (!sums_.empty()) {
      sums_[index(args_.problem.bias_batch > 1 ? b : 0, args_.problem.bias_heads > 1 ? head : 0, i,
                  j)] += value;
    }
  }
  void store() const {
    if (sums_.empty()) {
      return;
    }
    const AttentionProblem& problem = args_.problem;
    for (int64_t b = 0; b < problem.bias_batch; ++b) {
      const Rows rows(args_.grad_bias, problem.dtype, AttentionProblem{}, b, 0);
      for (int64_t head = 0; head < problem.bias_heads; ++head) {
        for (int64_t i = 0; i < problem.queries; ++i) {
          for (int64_t j = 0; j < problem.keys; ++j) {
            rows.set(head, i, j, sums_[index(b, head, i, j)]);
          }
        }
      }
    }
  }

 private:
  size_t index(int64_t b, int64_t head, int64_t i, int64_t j) const {
    const AttentionProblem& problem = args_.problem;
    return static_cast<size_t>(
        ((b * problem.bias_heads + head) * problem.queries + i) * problem.keys + j);
  }
  const AttentionBackwardArgs& args_;
  std::vector<double> sums_;
};

void backward_row(const AttentionBackwardArgs& args, const Sequence& sequence, int64_t head,
                  int64_t i, KeyGradients& sums, BiasGradient& bias) {
  const AttentionProblem& problem = args.problem;
  const Head row(problem, args.inputs, sequence, head);
  const Rows o(args.o, problem.dtype, problem, sequence.index, sequence.first_q);
  const Rows grad_o(args.grad_o, problem.dtype, problem, sequence.index, sequence.first_q);
  const Rows grad_q(args.grad_q, problem.dtype, problem, sequence.index, sequence.first_q);
  const double log_sum = args.statistics[statistics_index(problem, sequence, head, i)];
  double mean = 0.0;
  for (int64_t d = 0; d < problem.size_v; ++d) {
    mean += grad_o.get(head, i, d) * o.get(head, i, d);
  }
  std::vector<double> q_sums(static_cast<size_t>(problem.size_qk));
  for (int64_t j = 0; j < sequence.keys; ++j) {
    if (!row.sees(i, j)) {
      continue;
    }
    const double share = std::exp(row.score(i, j) - log_sum);
    const double factor = row.factor(i, j);
    double grad_share = 0.0;
    for (int64_t d = 0; d < problem.size_v; ++d) {
      const double grad = grad_o.get(head, i, d);
      grad_share += factor * grad * row.v(j, d);
      sums.v[static_cast<size_t>(j * problem.size_v + d)] += share * factor * grad;
    }
    const double grad_score = share * (grad_share - mean);
    bias.add(sequence.index, head, i, j, grad_score);
    for (int64_t d = 0; d < problem.size_qk; ++d) {
      q_sums[static_cast<size_t>(d)] += problem.scale * grad_score * row.k(j, d);
      sums.k[static_cast<size_t>(j * problem.size_qk + d)] +=
          problem.scale * grad_score * row.q(i, d);
    }
  }
  for (int64_t d = 0; d < problem.size_qk; ++d) {
    grad_q.set(head, i, d, q_sums[static_cast<size_t>(d)]);
  }
}

void backward_group(const AttentionBackwardArgs& args, const Sequence& sequence, int64_t group,
                    BiasGradient& bias) {
  const AttentionProblem& problem = args.problem;
  const int64_t shared = problem.heads / problem.groups;
  KeyGradients sums{std::vector<double>(static_cast<size_t>(sequence.keys * problem.size_qk)),
                    std::vector<double>(static_cast<size_t>(sequence.keys * problem.size_v))};
  for (int64_t head = group * shared; head < (group + 1) * shared; ++head) {
    for (int64_t i = 0; i < sequence.queries; ++i) {
      backward_row(args, sequence, head, i, sums, bias);
    }
  }
  const Rows grad_k(args.grad_k, problem.dtype, problem, sequence.index, sequence.first_kv);
  const Rows grad_v(args.grad_v, problem.dtype, problem, sequence.index, sequence.first_kv);
  for (int64_t j = 0; j < sequence.keys; ++j) {
    for (int64_t d = 0; d < problem.size_qk; ++d) {
      grad_k.set(group, j, d, sums.k[static_cast<size_t>(j * problem.size_qk + d)]);
    }
    for (int64_t d = 0; d < problem.size_v; ++d) {
      grad_v.set(group, j, d, sums.v[static_cast<size_t>(j * problem.size_v + d)]);
    }
  }
}

}  // namespace

double dropout_factor(const AttentionProblem& problem, const AttentionInputs& inputs,
                      int64_t index) {
  if (problem.dropout == 0.0F) {
    return 1.0;
  }
  const auto counter = static_cast<uint64_t>(index);
  const auto offset = static_cast<uint64_t>(*inputs.offset);
  const auto words = numerics::philox4x32_10<uint32_t>(
      {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
        static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
      numerics::philox_key(static_cast<uint64_t>(*inputs.seed)));
  const double uniform = words.word[0] * 0x1p-32;
  return uniform < static_cast<double>(problem.dropout) ? 0.0 : 1.0 / (1.0 - problem.dropout);
}

void attention_forward(const AttentionForwardArgs& args, const Context&) {
  const AttentionProblem& problem = args.problem;
  if (problem.has_lengths) {
    clear(args.o, problem, problem.heads, problem.is_packed ? problem.tokens_q : problem.queries,
          problem.size_v);
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = sequence_of(problem, args.inputs.sequences, b);
    for (int64_t head = 0; head < problem.heads; ++head) {
      for (int64_t i = 0; i < sequence.queries; ++i) {
        forward_row(args, sequence, head, i);
      }
    }
  }
}

void attention_backward(const AttentionBackwardArgs& args, const Context&) {
  const AttentionProblem& problem = args.problem;
  if (problem.has_lengths) {
    const int64_t tokens_q = problem.is_packed ? problem.tokens_q : problem.queries;
    const int64_t tokens_kv = problem.is_packed ? problem.tokens_kv : problem.keys;
    clear(args.grad_q, problem, problem.heads, tokens_q, problem.size_qk);
    clear(args.grad_k, problem, problem.groups, tokens_kv, problem.size_qk);
    clear(args.grad_v, problem, problem.groups, tokens_kv, problem.size_v);
  }
  BiasGradient bias(args);
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = sequence_of(problem, args.inputs.sequences, b);
    for (int64_t group = 0; group < problem.groups; ++group) {
      backward_group(args, sequence, group, bias);
    }
  }
  bias.store();
}

}  // namespace transformer_engine::reference
