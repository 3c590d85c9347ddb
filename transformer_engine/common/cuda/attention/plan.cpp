// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/plan.h"

#include <transformer_engine/error.h>

#include <algorithm>
#include <unordered_map>

#include "cuda/attention/frontend.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // cuDNN, for frontend_function()
}

namespace transformer_engine::cuda {

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

fe::DataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3:
      return fe::DataType_t::FP8_E4M3;
    case DType::kFloat8E5M2:
      return fe::DataType_t::FP8_E5M2;
    case DType::kFloat16:
      return fe::DataType_t::HALF;
    default:
      return fe::DataType_t::BFLOAT16;
  }
}
int64_t identifier_of(Role role) { return static_cast<int64_t>(role) + 1; }
Role starts_role(int index) { return static_cast<Role>(static_cast<int>(Role::kStarts) + index); }

void check_frontend(fe::error_t status, const char* function) {
  TE_CHECK_AS(RuntimeError, status.is_good(), "attention: ", function, " failed with \"",
              status.get_message(),
              "\"; a problem that cuDNN takes is required. Report it with the shapes and dtypes of "
              "the operands.");
}

// cuDNN's handles belong to one thread and one device at a time.
cudnnHandle_t handle_of(int device) {
  thread_local std::unordered_map<int, cudnnHandle_t> handles;
  const auto [entry, is_new] = handles.try_emplace(device, nullptr);
  if (is_new) {
    const cudnnStatus_t status = fe::detail::create_handle(&entry->second);
    if (status != CUDNN_STATUS_SUCCESS) {
      handles.erase(device);
      throw RuntimeError(concat("attention: cudnnCreate failed with \"",
                                fe::detail::get_error_string(status),
                                "\"; a working cuDNN is required. Check that its libraries are of "
                                "one version."));
    }
  }
  return entry->second;
}

class Plan : public AttentionPlan {
 public:
  explicit Plan(int device) : device_(device) {}
  fe::graph::Graph& graph() { return graph_; }

  // Why there is none; empty when it is ready.
  std::string build() {
    const cudnnHandle_t handle = handle_of(device_);
    fe::error_t status = graph_.validate();
    if (status.is_good()) {
      status = graph_.build_operation_graph(handle);
    }
    if (status.is_good()) {
      status = graph_.create_execution_plans({fe::HeurMode_t::A});
    }
    if (status.is_good()) {
      status = graph_.check_support();
    }
    if (status.is_good()) {
      status = graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    }
    if (status.is_good()) {
      status = graph_.get_workspace_size(workspace_bytes_);
    }
    return status.is_good() ? std::string() : status.get_message();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const Pointers& pointers, void* workspace, void* stream) override {
    std::unordered_map<int64_t, void*> pack;
    pack.reserve(pointers.size());
    for (size_t role = 0; role < pointers.size(); ++role) {
      if (pointers[role] != nullptr) {
        pack.emplace(static_cast<int64_t>(role) + 1, pointers[role]);
      }
    }
    const cudnnHandle_t handle = handle_of(device_);
    const cudnnStatus_t status = fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream));
    TE_CHECK_AS(RuntimeError, status == CUDNN_STATUS_SUCCESS,
                "attention: cudnnSetStream failed with \"", fe::detail::get_error_string(status),
                "\"; a stream of this device is required.");
    check_frontend(graph_.execute(handle, pack, workspace), "cudnnBackendExecute");
  }

 private:
  int device_;
  int64_t workspace_bytes_ = 0;
  fe::graph::Graph graph_;
};

// Of what types the tensors of heads are.
struct HeadsTypes {
  DType inputs, o, grad_o, grads;

  DType of(Role role) const {
    switch (role) {
      case Role::kO:
        return o;
      case Role::kGradO:
        return grad_o;
      case Role::kGradQ:
      case Role::kGradK:
      case Role::kGradV:
        return grads;
      default:
        return inputs;
    }
  }
};

// The tensors of one graph.
class Builder {
 public:
  Builder(fe::graph::Graph& graph, const AttentionProblem& problem, const HeadsTypes& types,
          const PlanOptions& options, StartsTable starts)
      : graph_(graph), problem_(problem), types_(types), options_(options), starts_(starts) {
    graph.set_io_data_type(type_of(problem.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(options.compute_capability);
    for (int i = 0; i < starts.count(); ++i) {
      starts_tensors_[static_cast<size_t>(i)] =
          vector(starts_role(i), problem.batch + 1,
                 options.has_wide_starts ? fe::DataType_t::INT64 : fe::DataType_t::INT32);
    }
  }

  fe::graph::Graph& graph() { return graph_; }

  // Where a tensor lies: [batch, heads, tokens, size].
  template <typename Target>
  void describe(Target& target, Role role, const HeadsView& view, int64_t size) {
    const bool is_query =
        role == Role::kQ || role == Role::kO || role == Role::kGradO || role == Role::kGradQ;
    const bool has_groups =
        role == Role::kK || role == Role::kV || role == Role::kGradK || role == Role::kGradV;
    const int64_t tokens = is_query ? problem_.queries : problem_.keys;
    const int64_t batch_stride =
        problem_.is_packed ? tokens * view.token_stride : view.batch_stride;
    target.set_uid(identifier_of(role))
        .set_data_type(type_of(types_.of(role)))
        .set_dim({problem_.batch, has_groups ? problem_.groups : problem_.heads, tokens, size})
        .set_stride({batch_stride, view.head_stride, view.token_stride, 1});
    set_starts(target, is_query, view.token_stride);
  }
  Tensor input(const char* name, Role role, const HeadsView& view, int64_t size) {
    Tensor_attributes attributes;
    attributes.set_name(name);
    describe(attributes, role, view, size);
    return graph_.tensor(attributes);
  }
  void output(const Tensor& tensor, Role role, const HeadsView& view, int64_t size) {
    tensor->set_output(true);
    describe(*tensor, role, view, size);
  }
  // FP32 [batch, heads, queries, 1], or by tokens [tokens, heads].
  template <typename Target>
  void describe_statistics(Target& target) {
    const int64_t heads = problem_.heads;
    const int64_t queries = problem_.queries;
    target.set_uid(identifier_of(Role::kStatistics))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({problem_.batch, heads, queries, 1});
    if (problem_.is_packed) {
      target.set_stride({heads * queries, 1, heads, 1});
    } else {
      target.set_stride({heads * queries, queries, 1, 1});
    }
    set_starts(target, true, heads);
  }
  Tensor statistics() {
    Tensor_attributes attributes;
    attributes.set_name("statistics");
    describe_statistics(attributes);
    return graph_.tensor(attributes);
  }
  Tensor bias(Role role, const HeadsView& view) {
    return graph_.tensor(
        Tensor_attributes()
            .set_name("bias")
            .set_uid(identifier_of(role))
            .set_data_type(type_of(problem_.dtype))
            .set_dim({problem_.bias_batch, problem_.bias_heads, problem_.queries, problem_.keys})
            .set_stride({view.batch_stride, view.head_stride, view.token_stride, 1}));
  }
  Tensor vector(Role role, int64_t count, fe::DataType_t type) {
    return graph_.tensor(Tensor_attributes()
                             .set_name("numbers")
                             .set_uid(identifier_of(role))
                             .set_data_type(type)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1}));
  }

  // An FP32 number in device memory, at any multiple of its size.
  Tensor number(Role role) {
    Tensor_attributes attributes;
    describe_number(attributes, role);
    return graph_.tensor(attributes);
  }
  void output_number(const Tensor& tensor, Role role) {
    tensor->set_output(true);
    describe_number(*tensor, role);
  }
  // The scale of a result or the like, which tensors of 16 bits do not have.
  Tensor number_if(bool has_scale, Role role) {
    return has_scale ? number(role) : graph_.tensor(1.0F);
  }

  // What all operations share.
  template <typename Attributes>
  void set_lengths(Attributes& attributes) {
    attributes.set_attn_scale(problem_.scale);
    if (options_.has_lengths) {
      attributes.set_padding_mask(true)
          .set_seq_len_q(vector(Role::kLengthsQ, problem_.batch, fe::DataType_t::INT32))
          .set_seq_len_kv(vector(Role::kLengthsKV, problem_.batch, fe::DataType_t::INT32));
    }
  }
  // What operations have but the backward of FP8.
  template <typename Attributes>
  void set_common(Attributes& attributes, const AttentionInputs& inputs) {
    set_lengths(attributes);
    if (problem_.left >= 0 || problem_.right >= 0) {
      const bool is_bottom_right =
          problem_.is_bottom_right &&
          (problem_.has_lengths || problem_.queries != problem_.keys);  // else the same
      attributes.set_diagonal_alignment(is_bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                        : fe::DiagonalAlignment_t::TOP_LEFT);
    }
    // A side beyond all tokens hides nothing, whatever its number.
    const int64_t most = problem_.queries + problem_.keys;
    if (problem_.left >= 0) {  // cuDNN counts the diagonal, too
      attributes.set_diagonal_band_left_bound(static_cast<int>(std::min(problem_.left, most) + 1));
    }
    if (problem_.right >= 0) {
      attributes.set_diagonal_band_right_bound(static_cast<int>(std::min(problem_.right, most)));
    }
    if (problem_.has_bias) {
      attributes.set_bias(bias(Role::kBias, inputs.bias));
    }
    if (problem_.dropout > 0.0F) {
      attributes.set_dropout(problem_.dropout, vector(Role::kSeed, 1, fe::DataType_t::INT64),
                             vector(Role::kOffset, 1, fe::DataType_t::INT64));
    }
  }

 private:
  template <typename Target>
  static void describe_number(Target& target, Role role) {
    target.set_uid(identifier_of(role))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({1, 1, 1, 1})
        .set_stride({1, 1, 1, 1})
        .set_alignment(sizeof(float));
  }
  template <typename Target>
  void set_starts(Target& target, bool is_query, int64_t token_stride) {
    const int index = starts_.find(is_query, token_stride);
    if (index >= 0) {
      target.set_ragged_offset(starts_tensors_[static_cast<size_t>(index)]);
    }
  }

  fe::graph::Graph& graph_;
  const AttentionProblem& problem_;
  HeadsTypes types_;
  const PlanOptions& options_;
  StartsTable starts_;
  std::array<Tensor, kMostStarts> starts_tensors_;
};

void add_forward(Builder& builder, const AttentionForwardArgs& args) {
  const AttentionProblem& problem = args.problem;
  auto attributes = fe::graph::SDPA_attributes()
                        .set_name("attention")
                        .set_implementation(fe::AttentionImplementation_t::COMPOSITE)
                        .set_generate_stats(problem.has_statistics);
  builder.set_common(attributes, args.inputs);
  const auto [o, statistics] =
      builder.graph().sdpa(builder.input("q", Role::kQ, args.inputs.q, problem.size_qk),
                           builder.input("k", Role::kK, args.inputs.k, problem.size_qk),
                           builder.input("v", Role::kV, args.inputs.v, problem.size_v), attributes);
  builder.output(o, Role::kO, args.o, problem.size_v);
  if (problem.has_statistics) {
    statistics->set_output(true);
    builder.describe_statistics(*statistics);
  }
}

void add_backward(Builder& builder, const AttentionBackwardArgs& args, const PlanOptions& options) {
  const AttentionProblem& problem = args.problem;
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_name("attention_backward")
                        .set_deterministic_algorithm(problem.is_deterministic);
  builder.set_common(attributes, args.inputs);
  if (problem.is_packed) {
    attributes.set_max_total_seq_len_q(options.most_tokens_q)
        .set_max_total_seq_len_kv(options.most_tokens_kv);
  }
  if (args.grad_bias.data != nullptr) {
    attributes.set_dbias(builder.bias(Role::kGradBias, args.grad_bias));
  }
  const auto [grad_q, grad_k, grad_v] = builder.graph().sdpa_backward(
      builder.input("q", Role::kQ, args.inputs.q, problem.size_qk),
      builder.input("k", Role::kK, args.inputs.k, problem.size_qk),
      builder.input("v", Role::kV, args.inputs.v, problem.size_v),
      builder.input("o", Role::kO, args.o, problem.size_v),
      builder.input("grad_o", Role::kGradO, args.grad_o, problem.size_v), builder.statistics(),
      attributes);
  builder.output(grad_q, Role::kGradQ, args.grad_q, problem.size_qk);
  builder.output(grad_k, Role::kGradK, args.grad_k, problem.size_qk);
  builder.output(grad_v, Role::kGradV, args.grad_v, problem.size_v);
}

void add_forward(Builder& builder, const AttentionFp8ForwardArgs& args) {
  const AttentionProblem& problem = args.problem;
  auto attributes = fe::graph::SDPA_fp8_attributes()
                        .set_name("attention_fp8")
                        .set_implementation(fe::AttentionImplementation_t::COMPOSITE)
                        .set_generate_stats(problem.has_statistics);
  builder.set_common(attributes, args.inputs);
  const auto [o, statistics, amax_s, amax_o] = builder.graph().sdpa_fp8(
      builder.input("q", Role::kQ, args.inputs.q, problem.size_qk),
      builder.input("k", Role::kK, args.inputs.k, problem.size_qk),
      builder.input("v", Role::kV, args.inputs.v, problem.size_v), builder.number(Role::kDescaleQ),
      builder.number(Role::kDescaleK), builder.number(Role::kDescaleV),
      builder.number(Role::kDescaleS), builder.number(Role::kScaleS),
      builder.number_if(is_fp8(args.types.o), Role::kScaleO), attributes);
  builder.output(o, Role::kO, args.o, problem.size_v);
  builder.output_number(amax_s, Role::kAmaxS);
  builder.output_number(amax_o, Role::kAmaxO);
  if (problem.has_statistics) {
    statistics->set_output(true);
    builder.describe_statistics(*statistics);
  }
}

void add_backward(Builder& builder, const AttentionFp8BackwardArgs& args) {
  const AttentionProblem& problem = args.problem;
  auto attributes = fe::graph::SDPA_fp8_backward_attributes()
                        .set_name("attention_fp8_backward")
                        .set_deterministic_algorithm(problem.is_deterministic)
                        .set_causal_mask(problem.right >= 0);
  builder.set_lengths(attributes);
  const bool has_scales = is_fp8(args.types.grads);
  const auto [grad_q, grad_k, grad_v, amax_q, amax_k, amax_v, amax_dp] =
      builder.graph().sdpa_fp8_backward(
          builder.input("q", Role::kQ, args.inputs.q, problem.size_qk),
          builder.input("k", Role::kK, args.inputs.k, problem.size_qk),
          builder.input("v", Role::kV, args.inputs.v, problem.size_v),
          builder.input("o", Role::kO, args.o, problem.size_v),
          builder.input("grad_o", Role::kGradO, args.grad_o, problem.size_v), builder.statistics(),
          builder.number(Role::kDescaleQ), builder.number(Role::kDescaleK),
          builder.number(Role::kDescaleV),
          builder.number_if(is_fp8(args.types.saved_o), Role::kDescaleO),
          builder.number(Role::kDescaleGradO), builder.number(Role::kDescaleS),
          builder.number(Role::kDescaleDP), builder.number(Role::kScaleS),
          builder.number_if(has_scales, Role::kScaleGradQ),
          builder.number_if(has_scales, Role::kScaleGradK),
          builder.number_if(has_scales, Role::kScaleGradV), builder.number(Role::kScaleDP),
          attributes);
  builder.output(grad_q, Role::kGradQ, args.grad_q, problem.size_qk);
  builder.output(grad_k, Role::kGradK, args.grad_k, problem.size_qk);
  builder.output(grad_v, Role::kGradV, args.grad_v, problem.size_v);
  builder.output_number(amax_q, Role::kAmaxGradQ);
  builder.output_number(amax_k, Role::kAmaxGradK);
  builder.output_number(amax_v, Role::kAmaxGradV);
  builder.output_number(amax_dp, Role::kAmaxDP);
}

HeadsTypes same_types(const AttentionProblem& problem) {
  return {problem.dtype, problem.dtype, problem.dtype, problem.dtype};
}
HeadsTypes types_of(const AttentionProblem& problem, const AttentionFp8Types& types, DType o) {
  return {.inputs = problem.dtype, .o = o, .grad_o = types.grad_o, .grads = types.grads};
}

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

template <typename Add>
PlanOrReason make(const AttentionProblem& problem, const HeadsTypes& types,
                  const StartsTable& starts, const PlanOptions& options, const Add& add) {
  PlanOrReason result;
  try {
    auto plan = std::make_unique<Plan>(current_device());
    Builder builder(plan->graph(), problem, types, options, starts);
    add(builder);
    result.reason = plan->build();
    if (result.reason.empty()) {
      result.plan = std::move(plan);
    }
  } catch (const RuntimeError&) {
    throw;
  } catch (const std::exception& error) {  // the frontend's own, for what the library lacks
    result.reason = error.what();
  }
  return result;
}

}  // namespace

StartsTable::StartsTable(const AttentionForwardArgs& args) {
  add_inputs(args.problem, args.inputs);
  if (args.problem.is_packed) {
    add(true, args.o.token_stride);
    add(true, args.problem.heads);
  }
}
StartsTable::StartsTable(const AttentionBackwardArgs& args) {
  add_inputs(args.problem, args.inputs);
  if (args.problem.is_packed) {
    for (const HeadsView* view : {&args.o, &args.grad_o, &args.grad_q}) {
      add(true, view->token_stride);
    }
    for (const HeadsView* view : {&args.grad_k, &args.grad_v}) {
      add(false, view->token_stride);
    }
    add(true, args.problem.heads);
  }
}
void StartsTable::add_inputs(const AttentionProblem& problem, const AttentionInputs& inputs) {
  if (problem.is_packed) {
    add(true, inputs.q.token_stride);
    add(false, inputs.k.token_stride);
    add(false, inputs.v.token_stride);
  }
}
void StartsTable::add(bool is_query, int64_t token_stride) {
  if (find(is_query, token_stride) < 0) {
    all_[static_cast<size_t>(count_)] = {is_query, token_stride};
    ++count_;
  }
}
int StartsTable::find(bool is_query, int64_t token_stride) const {
  for (int i = 0; i < count_; ++i) {
    if (at(i) == StartsOf{is_query, token_stride}) {
      return i;
    }
  }
  return -1;
}

PlanOrReason make_plan(const AttentionForwardArgs& args, const PlanOptions& options) {
  return make(args.problem, same_types(args.problem), StartsTable(args), options,
              [&](Builder& builder) { add_forward(builder, args); });
}
PlanOrReason make_plan(const AttentionBackwardArgs& args, const PlanOptions& options) {
  return make(args.problem, same_types(args.problem), StartsTable(args), options,
              [&](Builder& builder) { add_backward(builder, args, options); });
}
PlanOrReason make_plan(const AttentionFp8ForwardArgs& args, const PlanOptions& options) {
  return make(args.problem, types_of(args.problem, args.types, args.types.o), StartsTable(),
              options, [&](Builder& builder) { add_forward(builder, args); });
}
PlanOrReason make_plan(const AttentionFp8BackwardArgs& args, const PlanOptions& options) {
  return make(args.problem, types_of(args.problem, args.types, args.types.saved_o), StartsTable(),
              options, [&](Builder& builder) { add_backward(builder, args); });
}

}  // namespace transformer_engine::cuda
