// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The functions on lists of tensors. Each takes (chunk_size, noop_flag, tensor_lists, ...), as
// multi_tensor_applier calls them; how the work is cut is decided by the core, so chunk_size is not
// read. What is written gets a new version, so that whoever cached something derived from it sees
// the write.
#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>
#include <transformer_engine/multi_tensor.h>

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "allocate.h"
#include "bind.h"
#include "output.h"
#include "steps/python_call.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;
using Lists = std::vector<std::vector<at::Tensor>>;

// What one list holds: its name in messages, whether it is written, and the type of its elements
// where torch's dtype does not say it.
struct ListRole {
  const char* name;
  bool is_written = false;
  std::optional<DType> dtype = std::nullopt;
};

// Checks one scalar that is read from, or written to, memory.
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  const at::Tensor& flag) {
  TE_CHECK(tensor.device() == flag.device(), op, ": ", name, " is on ", tensor.device().str(),
           " and noop_flag on ", flag.device().str(), "; one device is required.");
  TE_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": ", name, " has dtype ",
                at::toString(tensor.scalar_type()), "; ", at::toString(dtype), " is required.");
  TE_CHECK(tensor.numel() == 1 && !is_python_tensor(tensor), op, ": ", name, " has shape ",
           tensor.sizes(), "; a plain tensor of one element is required.");
}

void count_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// The lists of one call as the core's views. Tensors at one position need equal shapes and strides
// without gaps: they are read as flat arrays.
class Operands {
 public:
  Operands(const char* op, const at::Tensor& flag, const Lists& lists,
           std::initializer_list<ListRole> roles)
      : op_(op), flag_(flag), lists_(lists), roles_(roles) {
    check_scalar(op, "noop_flag", flag, at::ScalarType::Int, flag);
    TE_CHECK(lists.size() == roles_.size(), op, ": tensor_lists has ", lists.size(), " lists; ",
             roles_.size(), " are required: ", names(), ".");
    views_.reserve(lists.size());
    for (size_t list = 0; list < lists.size(); ++list) {
      views_.emplace_back();
      views_.back().reserve(lists[list].size());
      for (size_t position = 0; position < lists[list].size(); ++position) {
        views_.back().push_back(view_of(list, position));
      }
    }
  }

  TensorList operator[](size_t list) const { return views_[list]; }
  int32_t* noop() const { return static_cast<int32_t*>(flag_.data_ptr()); }

  // Runs the op with the GIL released; then counts the writes.
  template <typename Args>
  void run(void (*function)(const Args&, const Context&), const Args& args) const {
    const Context context = context_for(flag_);
    {
      const py::gil_scoped_release released;
      function(args, context);
    }
    for (size_t list = 0; list < lists_.size(); ++list) {
      if (roles_[list].is_written) {
        for (const at::Tensor& tensor : lists_[list]) {
          count_write(tensor);
        }
      }
    }
  }

 private:
  std::string names() const {
    std::string all;
    for (const ListRole& role : roles_) {
      all += all.empty() ? role.name : concat(", ", role.name);
    }
    return all;
  }

  std::string place(size_t list, size_t position) const {
    return concat(op_, ": ", roles_[list].name, "[", position, "]");
  }

  TensorView view_of(size_t list, size_t position) const {
    const at::Tensor& tensor = lists_[list][position];
    const auto where = [&] { return place(list, position); };
    TE_CHECK_TYPE(!is_python_tensor(tensor), where(),
                  " is of a class that overrides operators; a plain tensor is required. Pass its "
                  "data, or a dequantized copy.");
    TE_CHECK(tensor.device() == flag_.device(), where(), " is on ", tensor.device().str(),
             " and noop_flag on ", flag_.device().str(), "; one device is required.");
    TE_CHECK(!tensor.is_neg(), where(),
             " has its negative bit set; plain values are required. Call .resolve_neg() first.");
    check_layout(list, position);
    TE_CHECK(tensor.numel() == 0 || tensor.storage().nbytes() > 0, where(), " of ", tensor.numel(),
             " elements has no memory; allocated memory is required.");
    return {.data = tensor.data_ptr(),
            .dtype = dtype_at(list, position),
            .rows = 1,
            .cols = tensor.numel()};
  }

  DType dtype_at(size_t list, size_t position) const {
    const at::ScalarType type = lists_[list][position].scalar_type();
    const std::optional<DType> dtype = find_dtype(type);
    TE_CHECK_TYPE(dtype.has_value(), place(list, position), " has dtype ", at::toString(type),
                  "; float32, float16, bfloat16, uint8 or int16 is required, as the list needs.");
    return *dtype == DType::kByte ? roles_[list].dtype.value_or(*dtype) : *dtype;
  }

  void check_layout(size_t list, size_t position) const {
    const at::Tensor& tensor = lists_[list][position];
    if (tensor.is_contiguous() && tensor.numel() == 1) {
      return;  // scalars may be [] or [1]
    }
    const at::Tensor& first =
        position < lists_[0].size() ? lists_[0][position] : lists_[list][position];
    if (tensor.is_contiguous() && first.is_contiguous()) {
      return;
    }
    const bool is_permuted = tensor.is_non_overlapping_and_dense() &&
                             tensor.sizes() == first.sizes() && tensor.strides() == first.strides();
    TE_CHECK(is_permuted, op_, ": ", roles_[list].name, "[", position, "] has shape ",
             tensor.sizes(), " and strides ", tensor.strides(), ", ", roles_[0].name, "[", position,
             "] ", first.sizes(), " and ", first.strides(),
             "; contiguous tensors, or equal strides without gaps, are required. Call "
             ".contiguous() first.");
  }

  const char* op_;
  const at::Tensor& flag_;
  const Lists& lists_;
  const std::vector<ListRole> roles_;
  std::vector<std::vector<TensorView>> views_;
};

const float* float_scalar(const char* op, const char* name, const at::Tensor& tensor,
                          const at::Tensor& flag) {
  check_scalar(op, name, tensor, at::ScalarType::Float, flag);
  return static_cast<const float*>(tensor.data_ptr());
}

// ---- scale and norm

void scale_lists(const at::Tensor& flag, const Lists& lists, float scale,
                 const std::optional<at::Tensor>& device_scale) {
  constexpr char kOp[] = "multi_tensor_scale";
  const Operands operands(kOp, flag, lists, {{"inputs"}, {"outputs", true}});
  MultiTensorScaleArgs args{
      .inputs = operands[0], .outputs = operands[1], .scale = scale, .noop = operands.noop()};
  if (device_scale.has_value()) {
    args.device_scale = float_scalar(kOp, "scale", *device_scale, flag);
  }
  operands.run(&multi_tensor_scale, args);
  count_write(flag);
}

std::pair<at::Tensor, at::Tensor> norm_of_lists(const at::Tensor& flag, const Lists& lists,
                                                const std::optional<at::Tensor>& inv_scale,
                                                std::optional<bool> per_tensor) {
  constexpr char kOp[] = "multi_tensor_l2norm";
  const Operands operands(kOp, flag, lists, {{"inputs"}});
  const at::Tensor norm = new_tensor({1}, at::ScalarType::Float, flag);
  const int64_t count =
      per_tensor.value_or(false) ? static_cast<int64_t>(lists[0].size()) : int64_t{0};
  const at::Tensor norms = new_tensor({count}, at::ScalarType::Float, flag);
  MultiTensorL2NormArgs args{
      .inputs = operands[0],
      .norm = static_cast<float*>(norm.data_ptr()),
      .per_tensor = count == 0 ? nullptr : static_cast<float*>(norms.data_ptr()),
      .noop = operands.noop()};
  if (inv_scale.has_value()) {
    args.inv_scale = float_scalar(kOp, "inv_scale", *inv_scale, flag);
  }
  operands.run(&multi_tensor_l2norm, args);
  count_write(flag);
  return {norm, norms};
}

// ---- Adam

struct AdamNumbers {
  double lr, beta1, beta2, epsilon;
  int64_t step;
  int mode;
  bool has_bias_correction;
  double weight_decay;
};

MultiTensorAdamArgs adam_args(const Operands& operands, const AdamNumbers& numbers) {
  TE_CHECK(numbers.step >= INT32_MIN && numbers.step <= INT32_MAX, "multi_tensor_adam: step is ",
           numbers.step, "; a 32-bit integer is required.");
  MultiTensorAdamArgs args{.grads = operands[0],
                           .params = operands[1],
                           .exp_avgs = operands[2],
                           .exp_avg_sqs = operands[3]};
  args.beta1 = numbers.beta1;
  args.beta2 = numbers.beta2;
  args.epsilon = static_cast<float>(numbers.epsilon);
  args.weight_decay = static_cast<float>(numbers.weight_decay);
  args.mode = static_cast<AdamMode>(numbers.mode);
  args.has_bias_correction = numbers.has_bias_correction;
  args.lr = static_cast<float>(numbers.lr);
  args.step = static_cast<int32_t>(numbers.step);
  return args;
}

constexpr ListRole kGrads{"grads"}, kParams{"params", true}, kExpAvgs{"exp_avgs", true},
    kExpAvgSqs{"exp_avg_sqs", true}, kMasters{"masters", true};

// With a fifth list for masters.
Operands adam_operands(const at::Tensor& flag, const Lists& lists, bool has_masters) {
  constexpr char kOp[] = "multi_tensor_adam";
  if (has_masters) {
    return {kOp, flag, lists, {kGrads, kParams, kExpAvgs, kExpAvgSqs, kMasters}};
  }
  return {kOp, flag, lists, {kGrads, kParams, kExpAvgs, kExpAvgSqs}};
}

void adam(const at::Tensor& flag, const Lists& lists, const AdamNumbers& numbers) {
  const bool has_masters = lists.size() == 5;
  const Operands operands = adam_operands(flag, lists, has_masters);
  MultiTensorAdamArgs args = adam_args(operands, numbers);
  args.masters = has_masters ? operands[4] : TensorList{};
  operands.run(&multi_tensor_adam, args);
}

void adam_param_remainder(const at::Tensor& flag, const Lists& lists, const AdamNumbers& numbers) {
  const Operands operands("multi_tensor_adam_param_remainder", flag, lists,
                          {kGrads, kParams, kExpAvgs, kExpAvgSqs, {"remainders", true}});
  MultiTensorAdamArgs args = adam_args(operands, numbers);
  args.remainders = operands[4];
  operands.run(&multi_tensor_adam, args);
}

void adam_fp8(const at::Tensor& flag, const Lists& lists, const AdamNumbers& numbers,
              int fp8_dtype) {
  constexpr char kOp[] = "multi_tensor_adam_fp8";
  const auto format = static_cast<DType>(fp8_dtype);
  TE_CHECK_TYPE(is_fp8(format), kOp, ": fp8_dtype is ", fp8_dtype, "; ",
                static_cast<int>(DType::kFloat8E4M3), " (E4M3) or ",
                static_cast<int>(DType::kFloat8E5M2), " (E5M2) is required.");
  const Operands operands(kOp, flag, lists,
                          {kGrads,
                           {"params", true, format},
                           kExpAvgs,
                           kExpAvgSqs,
                           kMasters,
                           {"scales"},
                           {"amaxes", true},
                           {"scale_invs", true}});
  MultiTensorAdamArgs args = adam_args(operands, numbers);
  args.masters = operands[4];
  args.fp8_scales = operands[5];
  args.fp8_amaxes = operands[6];
  args.fp8_scale_invs = operands[7];
  if (!lists[0].empty()) {
    operands.run(&multi_tensor_adam, args);
  }
}

// What a captured graph reads again in every replay.
struct CapturedNumbers {
  const at::Tensor &lr, &step, &inv_scale;
};

void adam_capturable(const at::Tensor& flag, const Lists& lists, const AdamNumbers& numbers,
                     const CapturedNumbers& captured, bool has_masters) {
  constexpr char kOp[] = "multi_tensor_adam_capturable";
  const Operands operands = adam_operands(flag, lists, has_masters);
  MultiTensorAdamArgs args = adam_args(operands, numbers);
  args.masters = has_masters ? operands[4] : TensorList{};
  args.device_lr = float_scalar(kOp, "lr", captured.lr, flag);
  check_scalar(kOp, "step", captured.step, at::ScalarType::Int, flag);
  args.device_step = static_cast<const int32_t*>(captured.step.data_ptr());
  args.inv_scale = float_scalar(kOp, "inv_scale", captured.inv_scale, flag);
  args.noop = operands.noop();
  operands.run(&multi_tensor_adam, args);
}

// ---- SGD and scales

void sgd(const at::Tensor& flag, const Lists& lists, MultiTensorSgdArgs args) {
  constexpr char kOp[] = "multi_tensor_sgd";
  const bool has_copies = lists.size() == 4;
  constexpr ListRole kMomenta{"momenta", true};
  const Operands operands =
      has_copies ? Operands(kOp, flag, lists, {kGrads, kParams, kMomenta, {"copies", true}})
                 : Operands(kOp, flag, lists, {kGrads, kParams, kMomenta});
  args.grads = operands[0];
  args.params = operands[1];
  args.momenta = operands[2];
  args.copies = has_copies ? operands[3] : TensorList{};
  args.noop = operands.noop();
  operands.run(&multi_tensor_sgd, args);
}

void compute_scales(const at::Tensor& flag, const Lists& lists, float fp8_max, bool power_of_two,
                    float epsilon) {
  const Operands operands("multi_tensor_compute_scale_and_scale_inv", flag, lists,
                          {{"amaxes"}, {"scales", true}, {"scale_invs", true}});
  operands.run(&multi_tensor_compute_scale_and_scale_inv, {.amaxes = operands[0],
                                                           .scales = operands[1],
                                                           .scale_invs = operands[2],
                                                           .fp8_max = fp8_max,
                                                           .epsilon = epsilon,
                                                           .power_of_two = power_of_two});
}

void compute_e8m0(const at::Tensor& flag, const Lists& lists) {
  const Operands operands("multi_tensor_compute_scale_inv_e8m0", flag, lists,
                          {{"amaxes"}, {"scale_invs", true, DType::kFloat8E8M0}});
  operands.run(&multi_tensor_compute_scale_inv_e8m0,
               {.amaxes = operands[0], .scale_invs = operands[1]});
}

void bind_adam(py::module_& m) {
  const auto with_numbers = [&m](const char* name, auto function, const char* doc) {
    m.def(
        name,
        [function](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, double lr,
                   double beta1, double beta2, double epsilon, int64_t step, int mode,
                   bool bias_correction, double weight_decay) {
          function(
              noop_flag, tensor_lists,
              AdamNumbers{lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay});
        },
        py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("lr"),
        py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"), py::arg("step"), py::arg("mode"),
        py::arg("bias_correction"), py::arg("weight_decay"), doc);
  };
  with_numbers("multi_tensor_adam", &adam,
               "One step of Adam (mode 0) or AdamW (1) on [grads, params, exp_avgs, exp_avg_sqs] "
               "and, optional, FP32 masters; noop_flag is not read.");
  with_numbers("multi_tensor_adam_param_remainder", &adam_param_remainder,
               "The same for BF16 params whose FP32 masters are completed by a fifth list of int16 "
               "remainders.");
  m.def(
      "multi_tensor_adam_fp8",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, double lr, double beta1,
         double beta2, double epsilon, int64_t step, int mode, bool bias_correction,
         double weight_decay, int fp8_dtype) {
        adam_fp8(noop_flag, tensor_lists,
                 AdamNumbers{lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay},
                 fp8_dtype);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("lr"),
      py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"), py::arg("step"), py::arg("mode"),
      py::arg("bias_correction"), py::arg("weight_decay"), py::arg("fp8_dtype"),
      "The same for FP8 params (uint8) with FP32 masters, and FP32 [1] scales, amaxes and "
      "scale_invs.");
  const auto capturable = [&m](const char* name, bool has_masters, const char* doc) {
    m.def(
        name,
        [has_masters](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists,
                      const at::Tensor& lr, double beta1, double beta2, double epsilon,
                      const at::Tensor& step, int mode, bool bias_correction, double weight_decay,
                      const at::Tensor& inv_scale) {
          adam_capturable(
              noop_flag, tensor_lists,
              AdamNumbers{0.0, beta1, beta2, epsilon, 1, mode, bias_correction, weight_decay},
              {lr, step, inv_scale}, has_masters);
        },
        py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("lr"),
        py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"), py::arg("step"), py::arg("mode"),
        py::arg("bias_correction"), py::arg("weight_decay"), py::arg("inv_scale"), doc);
  };
  capturable(
      "multi_tensor_adam_capturable", false,
      "multi_tensor_adam with lr, step (int32) and inv_scale, which multiplies gradients, in "
      "device memory; writes nothing where noop_flag is 1.");
  capturable("multi_tensor_adam_capturable_master", true,
             "The same with a fifth list of FP32 masters.");
}

}  // namespace

void bind_multi_tensor(py::module_& m) {
  m.def(
      "multi_tensor_scale",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, float scale) {
        scale_lists(noop_flag, tensor_lists, scale, std::nullopt);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("scale"),
      "outputs = inputs * scale for tensor_lists [inputs, outputs]; noop_flag becomes 1 if an "
      "input "
      "is not finite.");
  m.def(
      "multi_tensor_scale_tensor",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, const at::Tensor& scale) {
        scale_lists(noop_flag, tensor_lists, 1.0F, scale);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("scale"),
      "multi_tensor_scale by a float32 tensor of one element.");
  m.def(
      "multi_tensor_l2norm",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists,
         std::optional<bool> per_tensor) {
        return norm_of_lists(noop_flag, tensor_lists, std::nullopt, per_tensor);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"),
      py::arg("per_tensor") = py::none(),
      "(norm of all elements [1], norms of the tensors [n] or [0]), float32; noop_flag becomes 1 "
      "if "
      "the norm is not finite.");
  m.def(
      "multi_tensor_unscale_l2norm",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists,
         const at::Tensor& inv_scale, std::optional<bool> per_tensor) {
        return norm_of_lists(noop_flag, tensor_lists, inv_scale, per_tensor);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("inv_scale"),
      py::arg("per_tensor") = py::none(),
      "multi_tensor_l2norm of the elements times inv_scale, a float32 tensor of one element.");
  bind_adam(m);
  m.def(
      "multi_tensor_sgd",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, float weight_decay,
         float momentum, float dampening, float lr, bool nesterov, bool first_run,
         bool wd_after_momentum, float scale) {
        sgd(noop_flag, tensor_lists,
            {.weight_decay = weight_decay,
             .momentum = momentum,
             .dampening = dampening,
             .lr = lr,
             .scale = scale,
             .is_nesterov = nesterov,
             .is_first_run = first_run,
             .decays_after_momentum = wd_after_momentum});
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("weight_decay"),
      py::arg("momentum"), py::arg("dampening"), py::arg("lr"), py::arg("nesterov"),
      py::arg("first_run"), py::arg("wd_after_momentum"), py::arg("scale"),
      "One step of SGD on [grads, params, momenta] and, optional, copies of the params in another "
      "type; writes nothing where noop_flag is not 0.");
  m.def(
      "multi_tensor_compute_scale_and_scale_inv",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists, float max_fp8,
         bool force_pow_2_scales, float epsilon) {
        compute_scales(noop_flag, tensor_lists, max_fp8, force_pow_2_scales, epsilon);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"), py::arg("max_fp8"),
      py::arg("force_pow_2_scales"), py::arg("epsilon"),
      "Current scaling of [amaxes, scales, scale_invs]: scale = max_fp8 / max(amax, epsilon).");
  m.def(
      "multi_tensor_compute_scale_inv_e8m0",
      [](int64_t, const at::Tensor& noop_flag, const Lists& tensor_lists) {
        compute_e8m0(noop_flag, tensor_lists);
      },
      py::arg("chunk_size"), py::arg("noop_flag"), py::arg("tensor_lists"),
      "E8M0 codes (uint8) of [BF16 amaxes, codes] for E4M3 elements, rounded up.");
}

}  // namespace transformer_engine::pytorch
