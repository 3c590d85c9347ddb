// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/multi_tensor.h>

#include "core/checks.h"
#include "cpu/multi_tensor.h"
#include "numerics/bits.h"
#include "ops/candidates.h"
#include "reference/multi_tensor.h"

namespace transformer_engine {

namespace {

struct NamedList {
  const char* name;
  TensorList list;
};

// Positions of a list as "name[3]".
std::string at(const char* name, size_t position) { return concat(name, "[", position, "]"); }

void check_finite(const char* op, const char* name, float value) {
  TE_CHECK(numerics::is_finite(value), op, ": ", name, " is ", value,
           "; a finite number is required.");
}

// A tensor with sizes and memory. Its name is put together where it is at fault only: lists have
// thousands of tensors.
void check_tensor(const char* op, const NamedList& named, size_t position) {
  const TensorView& view = named.list[position];
  if (view.rows < 0 || view.cols < 0 || (view.data == nullptr && view.numel() != 0)) {
    const std::string name = at(named.name, position);
    check_extent(op, name.c_str(), view);
    check_data(op, name.c_str(), view);
  }
}

// Lists as long as the first, of tensors as long as the first list's.
void check_lists(const char* op, const NamedList& first, std::initializer_list<NamedList> others) {
  for (size_t i = 0; i < first.list.size(); ++i) {
    check_tensor(op, first, i);
  }
  for (const NamedList& other : others) {
    TE_CHECK(other.list.size() == first.list.size(), op, ": ", other.name, " has ",
             other.list.size(), " tensors and ", first.name, " ", first.list.size(),
             "; equal numbers are required.");
    for (size_t i = 0; i < first.list.size(); ++i) {
      check_tensor(op, other, i);
      TE_CHECK(other.list[i].numel() == first.list[i].numel(), op, ": ", at(other.name, i), " has ",
               other.list[i].numel(), " elements and ", at(first.name, i), " ",
               first.list[i].numel(), "; equal numbers are required.");
    }
  }
}

void check_high_precision_lists(const char* op, std::initializer_list<NamedList> lists) {
  for (const NamedList& named : lists) {
    for (size_t i = 0; i < named.list.size(); ++i) {
      if (!is_high_precision(named.list[i].dtype)) {
        check_high_precision(op, at(named.name, i).c_str(), named.list[i]);
      }
    }
  }
}

void check_dtype(const char* op, const NamedList& named, DType dtype) {
  for (size_t i = 0; i < named.list.size(); ++i) {
    TE_CHECK_TYPE(named.list[i].dtype == dtype, op, ": ", at(named.name, i), " has dtype ",
                  dtype_name(named.list[i].dtype), "; ", dtype_name(dtype), " is required.");
  }
}

// One FP32 number for each of `count` parameters.
void check_numbers(const char* op, const NamedList& named, size_t count) {
  TE_CHECK(named.list.size() == count, op, ": ", named.name, " has ", named.list.size(),
           " tensors for ", count, " params; one each is required.");
  check_dtype(op, named, DType::kFloat32);
  for (size_t i = 0; i < count; ++i) {
    TE_CHECK(named.list[i].numel() == 1 && named.list[i].data != nullptr, op, ": ",
             at(named.name, i), " has ", named.list[i].numel(),
             " elements; one number in memory is required.");
  }
}

void check_beta(const char* op, const char* name, double beta) {
  TE_CHECK(beta >= 0.0 && beta < 1.0, op, ": ", name, " is ", beta,
           "; a number from 0 to below 1 is required.");
}

void check_adam_numbers(const char* op, const MultiTensorAdamArgs& args) {
  check_beta(op, "beta1", args.beta1);
  check_beta(op, "beta2", args.beta2);
  check_finite(op, "weight_decay", args.weight_decay);
  TE_CHECK(args.epsilon >= 0.0F && numerics::is_finite(args.epsilon), op, ": epsilon is ",
           args.epsilon, "; a finite number of 0 or more is required.");
  const int mode = static_cast<int>(args.mode);
  TE_CHECK(mode == 0 || mode == 1, op, ": mode is ", mode,
           "; 0 (weight decay in the gradient) or 1 (decoupled) is required.");
  if (args.device_lr == nullptr) {
    check_finite(op, "lr", args.lr);
  }
  TE_CHECK(args.device_step != nullptr || !args.has_bias_correction || args.step >= 1, op,
           ": step is ", args.step, "; 1 or more is required with bias correction.");
}

// The parameters, by what carries their precision.
void check_adam_params(const char* op, const MultiTensorAdamArgs& args) {
  const NamedList params{"params", args.params};
  TE_CHECK(args.masters.empty() || args.remainders.empty(), op,
           ": masters and remainders are both given; at most one of them is allowed.");
  if (!args.fp8_scales.empty()) {
    TE_CHECK(!args.masters.empty(), op, ": FP8 params have no masters; they need FP32 masters.");
    for (size_t i = 0; i < args.params.size(); ++i) {
      if (!is_fp8(args.params[i].dtype)) {
        check_fp8(op, at("params", i).c_str(), args.params[i]);
      }
    }
    const size_t count = args.params.size();
    check_numbers(op, {"fp8_scales", args.fp8_scales}, count);
    check_numbers(op, {"fp8_amaxes", args.fp8_amaxes}, count);
    check_numbers(op, {"fp8_scale_invs", args.fp8_scale_invs}, count);
  } else if (!args.remainders.empty()) {
    check_dtype(op, params, DType::kBFloat16);
    check_dtype(op, {"remainders", args.remainders}, DType::kInt16);
  } else {
    check_high_precision_lists(op, {params});
  }
  check_dtype(op, {"masters", args.masters}, DType::kFloat32);
}

}  // namespace

void multi_tensor_scale(const MultiTensorScaleArgs& args, const Context& context) {
  constexpr char kOp[] = "multi_tensor_scale";
  check_lists(kOp, {"inputs", args.inputs}, {{"outputs", args.outputs}});
  check_high_precision_lists(kOp, {{"inputs", args.inputs}, {"outputs", args.outputs}});
  run_first_candidate(
      kOp,
      kCandidates<MultiTensorScaleArgs, &cpu::multi_tensor_scale, &reference::multi_tensor_scale>,
      args, context);
}

void multi_tensor_l2norm(const MultiTensorL2NormArgs& args, const Context& context) {
  constexpr char kOp[] = "multi_tensor_l2norm";
  check_lists(kOp, {"inputs", args.inputs}, {});
  check_high_precision_lists(kOp, {{"inputs", args.inputs}});
  TE_CHECK(args.norm != nullptr, kOp, ": norm is null; memory for one float32 is required.");
  run_first_candidate(kOp,
                      kCandidates<MultiTensorL2NormArgs, &cpu::multi_tensor_l2norm,
                                  &reference::multi_tensor_l2norm>,
                      args, context);
}

void multi_tensor_adam(const MultiTensorAdamArgs& args, const Context& context) {
  constexpr char kOp[] = "multi_tensor_adam";
  const NamedList grads{"grads", args.grads};
  const NamedList exp_avgs{"exp_avgs", args.exp_avgs};
  const NamedList exp_avg_sqs{"exp_avg_sqs", args.exp_avg_sqs};
  check_lists(kOp, grads, {{"params", args.params}, exp_avgs, exp_avg_sqs});
  for (const NamedList& optional :
       {NamedList{"masters", args.masters}, NamedList{"remainders", args.remainders}}) {
    if (!optional.list.empty()) {
      check_lists(kOp, grads, {optional});
    }
  }
  check_high_precision_lists(kOp, {grads, exp_avgs, exp_avg_sqs});
  check_adam_params(kOp, args);
  check_adam_numbers(kOp, args);
  run_first_candidate(
      kOp, kCandidates<MultiTensorAdamArgs, &cpu::multi_tensor_adam, &reference::multi_tensor_adam>,
      args, context);
}

void multi_tensor_sgd(const MultiTensorSgdArgs& args, const Context& context) {
  constexpr char kOp[] = "multi_tensor_sgd";
  const NamedList grads{"grads", args.grads};
  const NamedList params{"params", args.params};
  const NamedList momenta{"momenta", args.momenta};
  const NamedList copies{"copies", args.copies};
  check_lists(kOp, grads, {params, momenta});
  if (!args.copies.empty()) {
    check_lists(kOp, grads, {copies});
  }
  check_high_precision_lists(kOp, {grads, params, momenta, copies});
  check_finite(kOp, "weight_decay", args.weight_decay);
  check_finite(kOp, "momentum", args.momentum);
  check_finite(kOp, "dampening", args.dampening);
  check_finite(kOp, "lr", args.lr);
  check_finite(kOp, "scale", args.scale);
  run_first_candidate(
      kOp, kCandidates<MultiTensorSgdArgs, &cpu::multi_tensor_sgd, &reference::multi_tensor_sgd>,
      args, context);
}

void multi_tensor_compute_scale_and_scale_inv(const MultiTensorScalesArgs& args,
                                              const Context& context) {
  constexpr char kOp[] = "multi_tensor_compute_scale_and_scale_inv";
  const NamedList amaxes{"amaxes", args.amaxes};
  const NamedList scales{"scales", args.scales};
  const NamedList scale_invs{"scale_invs", args.scale_invs};
  check_lists(kOp, amaxes, {scales, scale_invs});
  for (const NamedList& named : {amaxes, scales, scale_invs}) {
    check_dtype(kOp, named, DType::kFloat32);
  }
  TE_CHECK(args.fp8_max > 0.0F && numerics::is_finite(args.fp8_max), kOp, ": fp8_max is ",
           args.fp8_max, "; a finite number above 0 is required.");
  TE_CHECK(args.epsilon >= 0.0F && numerics::is_finite(args.epsilon), kOp, ": epsilon is ",
           args.epsilon, "; a finite number of 0 or more is required.");
  run_first_candidate(kOp,
                      kCandidates<MultiTensorScalesArgs, &cpu::multi_tensor_scales,
                                  &reference::multi_tensor_scales>,
                      args, context);
}

void multi_tensor_compute_scale_inv_e8m0(const MultiTensorE8M0Args& args, const Context& context) {
  constexpr char kOp[] = "multi_tensor_compute_scale_inv_e8m0";
  const NamedList amaxes{"amaxes", args.amaxes};
  const NamedList scale_invs{"scale_invs", args.scale_invs};
  check_lists(kOp, amaxes, {scale_invs});
  check_dtype(kOp, amaxes, DType::kBFloat16);
  check_dtype(kOp, scale_invs, DType::kFloat8E8M0);
  run_first_candidate(
      kOp, kCandidates<MultiTensorE8M0Args, &cpu::multi_tensor_e8m0, &reference::multi_tensor_e8m0>,
      args, context);
}

}  // namespace transformer_engine
