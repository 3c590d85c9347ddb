// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One linear layer inside a step: its parameters as they are now, its three GEMMs, and where its
// weight gradient goes.
//   fprop  y  = x W^T + b      dgrad  dx = dy W      wgrad  dW = dy^T x
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "autograd_node.h"
#include "operand.h"
#include "steps/module_step.h"
#include "steps/node_support.h"
#include "steps/read_operand.h"
#include "steps/saved_operand.h"
#include "steps/sharding.h"

namespace transformer_engine::pytorch {

using TensorList = c10::SmallVector<at::Tensor, 3>;

// What a linear layer knows before it sees a tensor.
struct LinearSpec {
  std::string label;  // "Linear.forward", for messages
  std::vector<Name> weight_names;
  std::vector<Name> bias_names;  // empty without bias
  int64_t in_features = 0;
  int64_t out_features = 0;
  int gemm = 0;  // index of its quantizer slots
  bool fuse_wgrad_accumulation = false;
  bool delay_wgrad_compute = false;
  Sharding sharding;  // in_features and out_features are this rank's
};

// The parameters read for one call.
struct LinearParameters {
  TensorList weights;  // [out_i, in] each
  TensorList biases;   // [out_i] each
  bool weight_requires_grad = false;
  bool bias_requires_grad = false;
};

// The calls of one layer with is_first_microbatch=True, up to their backward: the first gradient
// among them overwrites main_grad, the others are added.
struct FirstMicrobatch {
  bool was_written = false;
};

// Everything a weight gradient needs; also what delay_wgrad_compute puts aside.
struct WgradTask {
  Operand grad_output;  // [m, out]
  Operand input;        // [m, in]
  TensorList weights;   // those that do not require a gradient (any more) get none
  std::shared_ptr<FirstMicrobatch> first_microbatch;  // null: main_grad is added to
  bool is_fast = false;                               // GemmFlags
};

// First in, first out.
struct WgradStore {
  std::deque<WgradTask> tasks;
};

class LinearPart {
 public:
  explicit LinearPart(LinearSpec spec) : spec_(std::move(spec)) {}
  const LinearSpec& spec() const { return spec_; }
  bool has_bias() const { return !spec_.bias_names.empty(); }

  // Reads and checks the module's parameters (GIL held).
  LinearParameters read_parameters(PyObject* module, const ParameterRule& required) const;

  // The weight as fprop and, with `needs_dgrad`, dgrad read it: quantized (cached when
  // `is_first_microbatch` has a value) or of `dtype`.
  struct WeightRequest {
    std::optional<bool> is_first_microbatch;
    at::ScalarType dtype = at::kFloat;  // of the activations
    bool needs_dgrad = false;
  };
  Operand weight_operand(const CallState& state, const LinearParameters& parameters,
                         const WeightRequest& request);

  WgradStore& wgrad_store() { return *wgrad_store_; }
  // Weight gradients that `previous` left for later are run by this one too.
  void share_wgrad_store(const LinearPart& previous) { wgrad_store_ = previous.wgrad_store_; }

  // To be called by each forward that will be differentiated; null unless is_first is True.
  std::shared_ptr<FirstMicrobatch> first_microbatch(const CallState& state,
                                                    std::optional<bool> is_first);

  // The quantized weight that graph captures left, which their replays write to: they have to keep
  // its memory. The next capture makes another one.
  Operand take_captured_weight();

 private:
  // What a cached copy was made from: any write, or another storage, makes it stale.
  struct WeightSource {
    explicit WeightSource(const at::Tensor& weight);
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    uint32_t version;
  };
  struct WeightCache {
    bool is_fresh(const CallState& state, const LinearParameters& parameters,
                  const Usages& usages) const;
    Operand operand;
    std::shared_ptr<const QuantizerSet> quantizers;
    c10::SmallVector<WeightSource, 1> sources;
  };

  Operand quantized_parameter(const CallState& state, const at::Tensor& weight,
                              const WeightRequest& request);
  // Inside a graph capture with a flag `skip`: one copy for all calls, which each of them quantizes
  // into unless the flag forbids it. Not defined where the quantizer cannot do that.
  Operand captured_weight(const CallState& state, const LinearParameters& parameters,
                          const Usages& usages, const at::Tensor& skip);

  LinearSpec spec_;
  // Of what forwards leave for later ones: they run without the GIL, on any thread.
  std::mutex mutex_;
  WeightCache cache_;
  WeightCache captured_;                   // without sources
  bool was_told_of_dequantizing_ = false;  // one warning
  std::shared_ptr<WgradStore> wgrad_store_ = std::make_shared<WgradStore>();
  std::shared_ptr<FirstMicrobatch> first_microbatch_;
};

// One tensor over all parts along dimension 0: a view where they lie next to each other in memory,
// a copy otherwise.
at::Tensor concatenate(const TensorList& parts);
// The same for a caller outside the step: gradients reach every part.
at::Tensor differentiable_concatenate(const TensorList& parts);
// [product of leading dimensions, last]; a view.
at::Tensor as_matrix(const at::Tensor& tensor);
at::Tensor as_dtype(const at::Tensor& tensor, at::ScalarType dtype);
// `tensor` contiguous, of its own dtype and plain: a quantized one is dequantized. The GIL is taken
// for that.
at::Tensor as_plain(const at::Tensor& tensor);
// The gradient of an output as the [m, n] of `dtype` that kernels read; undefined stays undefined.
at::Tensor gradient_matrix(const at::Tensor& gradient, at::ScalarType dtype);

// D (+)= op(a) op(b)^T (+ bias), see gemm.h; d is [m, n].
struct GemmFlags {
  bool a_is_transposed = false;
  bool b_is_transposed = false;
  bool accumulate = false;
  bool is_fast = false;  // allows_fast_accumulation
};
void run_gemm(const Operand& a, const Operand& b, const GemmFlags& flags, const at::Tensor& bias,
              const at::Tensor& d);

// `is_fast`: GemmFlags.
at::Tensor fprop(const Operand& input, const Operand& weight, const at::Tensor& bias,
                 at::ScalarType dtype, bool is_fast);
// `addend` [m, in] is added before rounding when defined (and may be overwritten).
at::Tensor dgrad(const Operand& grad_output, const Operand& weight, at::ScalarType dtype,
                 const at::Tensor& addend, bool is_fast);

// The gradient of an output [..., out] as an operand for dgrad and wgrad, and the bias gradient in
// the same pass when asked for. A gradient that arrives quantized is used as it is.
struct GradOutputRequest {
  at::ScalarType dtype;  // of the activations
  Usages usages;         // rowwise for dgrad, columnwise for wgrad

  bool needs_operand() const { return usages.rowwise || usages.columnwise; }
};
Operand prepare_grad_output(const CallState& state, const LinearSpec& spec,
                            const at::Tensor& gradient, const GradOutputRequest& request,
                            at::Tensor* grad_bias);

// Runs a weight gradient: into main_grad with fuse_wgrad_accumulation (the result is then
// undefined, or a placeholder for frameworks that asked for one), else one new tensor per weight.
TensorList run_wgrad(const WgradTask& task, const LinearSpec& spec);

// Runs the oldest delayed weight gradient of the layer: (gradients, weights), one each; undefined
// where the gradient went into main_grad. RuntimeError when there is none.
std::pair<TensorList, TensorList> run_delayed_wgrad(LinearPart& linear);

// The saved half of a linear layer inside a node.
struct SavedLinear {
  SavedOperand input;  // when the weight needs a gradient
  SavedOperand
      weight;  // when dgrad is needed and reads something else than the parameters themselves
  std::vector<torch::autograd::SavedVariable> weights;  // the parameters, when dgrad reads them
  bool dequantizes = false;                             // operands, before backward reads them
  bool is_original = false;  // `input` is the tensor before its quantization
  bool is_shard = false;     // `input` has this rank's rows only
  TensorList targets;        // the parameters a weight gradient is for; their values are not read
  bool weight_is_parameter = false;
  bool weight_is_read_late = false;  // a quantized parameter that gets its columnwise copy later

  // `dtype` of the activations, here and below.
  void save_weight(const CallState& state, const Operand& operand,
                   const LinearParameters& parameters, bool needs_dgrad, at::ScalarType dtype);
  Operand unpack_weight(torch::autograd::Node* node, const LinearSpec& spec,
                        at::ScalarType dtype) const;
  // `original` is the high-precision tensor behind a quantized `operand`, where the caller has it;
  // kept instead of it when `keeps_original`, or when backward computes in high precision.
  void save_input(const CallState& state, const Operand& operand, const at::Tensor& original,
                  bool keeps_original);
  // The input as wgrad reads it.
  Operand unpack_input(torch::autograd::Node* node, const CallState& state, const LinearSpec& spec,
                       at::ScalarType dtype) const;
  // The same in two steps where `is_shard`, with other work in between: start, wait, finish.
  PendingOperand start_gather(torch::autograd::Node* node, const CallState& state,
                              const LinearSpec& spec, at::ScalarType dtype) const;
  Operand wgrad_input(Operand gathered, const CallState& state, const LinearSpec& spec) const;
  void reset();

 private:
  Operand kept_input(torch::autograd::Node* node, const CallState& state,
                     at::ScalarType dtype) const;
};

// None or null, True, False; TypeError for what only looks like a flag, such as "False".
std::optional<bool> read_is_first_microbatch(PyObject* value, const std::string& label);

// The copies of a quantized parameter, input or gradient (read_operand.h), high-precision ones as
// `dtype`. The GIL is taken.
Operand read_quantized(const at::Tensor& tensor, at::ScalarType dtype, const OperandOwner& owner);
// What the backward of a quantized forward will read of the layer's input.
Usages input_usages(const CallState& state, bool needs_wgrad);
// Makes of a given quantized tensor an operand as `quantizer` makes them. Copies of its format are
// read as they are, those that `usages` ask for and the tensor lacks are quantized from what it
// stands for; a tensor of another format is quantized anew.
void complete_operand(Operand* operand, const Usages& usages, Quantizer& quantizer,
                      at::ScalarType dtype);
// The plain tensor a quantized one stands for.
at::Tensor dequantize_python(const at::Tensor& tensor, at::ScalarType dtype);

}  // namespace transformer_engine::pytorch
