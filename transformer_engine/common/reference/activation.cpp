// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/activation.h"

#include <cmath>

#include "reference/result.h"

namespace transformer_engine::reference {

namespace {

struct Point {  // f(x) and f'(x)
  double value;
  double slope;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Point scaled_silu(double x, double alpha) {
  const double s = sigmoid(alpha * x);
  return {x * s, s + alpha * x * s * sigmoid(-alpha * x)};
}

Point gelu(double x) {
  constexpr double kLinear = 0.79788456;
  constexpr double kCubic = 0.03567741;
  // 0.5 + 0.5 * tanh(u) = sigmoid(2u), which does not cancel at negative u.
  const double u = x * (kLinear + kCubic * x * x);
  const double u_slope = kLinear + 3.0 * kCubic * x * x;
  const double s = sigmoid(2.0 * u);
  return {x * s, s * (1.0 + 2.0 * x * u_slope * sigmoid(-2.0 * u))};
}

Point srelu(double x) {
  // Written so that NaN stays NaN.
  return x <= 0.0 ? Point{0.0, 0.0} : Point{x * x, 2.0 * x};
}

Point scaled_tanh(double x, double beta) {  // beta * tanh(x / beta)
  const double cosh = std::cosh(x / beta);
  return {beta * std::tanh(x / beta), 1.0 / (cosh * cosh)};
}

Point product(Point f, Point g) {
  return {f.value * g.value, f.slope * g.value + f.value * g.slope};
}

Point relu(double x) { return {x <= 0.0 ? 0.0 : x, x > 0.0 ? 1.0 : 0.0}; }

Point function_of(ActivationKind kind, const ActivationParams& params, double x) {
  switch (kind) {
    case ActivationKind::kGELU:
    case ActivationKind::kGEGLU:
      return gelu(x);
    case ActivationKind::kQGELU:
    case ActivationKind::kQGEGLU:
      return scaled_silu(x, 1.702);
    case ActivationKind::kReLU:
    case ActivationKind::kReGLU:
      return relu(x);
    case ActivationKind::kSReLU:
    case ActivationKind::kSReGLU:
      return srelu(x);
    case ActivationKind::kSiLU:
    case ActivationKind::kSwiGLU:
      return scaled_silu(x, 1.0);
    case ActivationKind::kGLU:
      return {sigmoid(x), sigmoid(x) * sigmoid(-x)};
    case ActivationKind::kClampedSwiGLU: {
      const double limit = params.limit;
      const Point inside = scaled_silu(x > limit ? limit : x, params.alpha);
      return {inside.value, x > limit ? 0.0 : inside.slope};
    }
    case ActivationKind::kSiTUGLU:
      return product(scaled_tanh(x, params.beta1), {sigmoid(x), sigmoid(x) * sigmoid(-x)});
  }
  return {0.0, 0.0};
}

// The factor that multiplies f, and its derivative.
Point gate_of(ActivationKind kind, const ActivationParams& params, double b) {
  if (kind == ActivationKind::kSiTUGLU) {
    return scaled_tanh(b, params.beta2);
  }
  if (kind != ActivationKind::kClampedSwiGLU) {
    return {b, 1.0};
  }
  const double limit = params.limit;
  const double bounded = b > limit ? limit : b < -limit ? -limit : b;
  return {bounded + params.glu_linear_offset, std::abs(b) > limit ? 0.0 : 1.0};
}

// input + bias, added in FP32.
double biased(const TensorView& input, const TensorView& bias, int64_t row, int64_t col) {
  const float value = load_float(input, row * input.cols + col);
  return bias.data == nullptr ? value : value + load_float(bias, col);
}

double scale_of(const TensorView& act_scales, int64_t row) {
  return act_scales.data == nullptr ? 1.0 : load_float(act_scales, row);
}

// Where column i of the result finds its two halves in a row of a gated input; a plain one has the
// first alone.
struct Halves {
  int64_t first;
  int64_t second;
};

template <typename Args>
Halves halves_of(const Args& args, int64_t i) {
  if (!is_gated(args.kind)) {
    return {i, i};
  }
  const int64_t block =
      args.glu_interleave_size > 0 ? args.glu_interleave_size : args.input.cols / 2;
  const int64_t first = i / block * 2 * block + i % block;
  return {first, first + block};
}

struct Terms {  // of one element of the result
  Point f;
  Point gate;
};

template <typename Args>
Terms terms_at(const Args& args, int64_t row, int64_t i) {
  const Halves at = halves_of(args, i);
  const Point f = function_of(args.kind, args.params, biased(args.input, args.bias, row, at.first));
  if (!is_gated(args.kind)) {
    return {f, {1.0, 0.0}};
  }
  return {f, gate_of(args.kind, args.params, biased(args.input, args.bias, row, at.second))};
}

struct Gradients {  // with respect to the first and the second half
  double first;
  double second;
};

Gradients gradients_at(const ActivationBackwardArgs& args, int64_t row, int64_t i) {
  const double grad_output = load_float(args.grad_output, row * args.grad_output.cols + i) *
                             scale_of(args.act_scales, row);
  const Terms terms = terms_at(args, row, i);
  return {grad_output * terms.f.slope * terms.gate.value,
          grad_output * terms.f.value * terms.gate.slope};
}

void write_grad_act_scales(const ActivationBackwardArgs& args) {
  const int64_t cols = args.grad_output.cols;
  for (int64_t row = 0; row < args.input.rows && args.grad_act_scales.data != nullptr; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < cols; ++i) {
      const Terms terms = terms_at(args, row, i);
      sum += load_float(args.grad_output, row * cols + i) * terms.f.value * terms.gate.value;
    }
    store_float(args.grad_act_scales, row, static_cast<float>(sum));
  }
}

void write_grad_bias(const ActivationBackwardArgs& args) {
  const int64_t cols = args.grad_output.cols;
  for (int64_t i = 0; i < cols && args.grad_bias.data != nullptr; ++i) {
    Gradients sum{0.0, 0.0};
    for (int64_t row = 0; row < args.input.rows; ++row) {
      const Gradients gradients = gradients_at(args, row, i);
      sum.first += gradients.first;
      sum.second += gradients.second;
    }
    const Halves at = halves_of(args, i);
    store_float(args.grad_bias, at.first, static_cast<float>(sum.first));
    if (is_gated(args.kind)) {
      store_float(args.grad_bias, at.second, static_cast<float>(sum.second));
    }
  }
}

}  // namespace

void activation_forward(const ActivationForwardArgs& args, const Context& context) {
  const int64_t cols = args.output.cols;
  Result result(args.output, args.quantized);
  for (int64_t row = 0; row < args.output.rows; ++row) {
    for (int64_t i = 0; i < cols; ++i) {
      const Terms terms = terms_at(args, row, i);
      const double y = terms.f.value * terms.gate.value;
      result.put(row * cols + i, y * scale_of(args.act_scales, row));
    }
  }
  result.finish(context);
}

void activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  const int64_t cols = args.grad_output.cols;
  Result result(args.grad_input, args.quantized);
  for (int64_t row = 0; row < args.input.rows; ++row) {
    for (int64_t i = 0; i < cols; ++i) {
      const Gradients gradients = gradients_at(args, row, i);
      const Halves at = halves_of(args, i);
      result.put(row * args.input.cols + at.first, gradients.first);
      if (is_gated(args.kind)) {
        result.put(row * args.input.cols + at.second, gradients.second);
      }
    }
  }
  write_grad_bias(args);
  write_grad_act_scales(args);
  result.finish(context);
}

void bias_gradient(const BiasGradientArgs& args, const Context& context) {
  const TensorView& grad_output = args.grad_output;
  for (int64_t col = 0; col < grad_output.cols; ++col) {
    double sum = 0.0;
    for (int64_t row = 0; row < grad_output.rows; ++row) {
      sum += load_float(grad_output, row * grad_output.cols + col);
    }
    store_float(args.grad_bias, col, static_cast<float>(sum));
  }
  Result(grad_output, args.quantized).finish(context);
}

}  // namespace transformer_engine::reference
