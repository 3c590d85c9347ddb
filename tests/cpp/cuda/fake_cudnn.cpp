// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/fake_cudnn.h"

#include <cudnn.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/cudnn.h"
#include "cuda/fake_cudnn_graph.h"
#include "device_memory.h"

namespace transformer_engine::testing {

namespace {

constexpr int64_t kWorkspaceBytes = 4096;
constexpr int64_t kEngines = 20;

size_t reported_version = 0;
std::string last_error;  // what cudnnGetLastErrorString gives

cudnnStatus_t fail(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

// ---- descriptors: what was set, and for plans and variant packs what was made of it

struct Content;
using ContentPointer = std::shared_ptr<Content>;

struct Attribute {
  cudnnBackendAttributeType_t type = CUDNN_TYPE_VOID_PTR;
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<ContentPointer> descriptors;

  template <typename T>
  std::vector<T> values() const {
    std::vector<T> all(bytes.size() / sizeof(T));
    std::memcpy(all.data(), bytes.data(), all.size() * sizeof(T));
    return all;
  }
};

struct Content {
  cudnnBackendDescriptorType_t type{};
  bool is_finalized = false;
  std::map<int, Attribute> attributes;
  std::shared_ptr<Graph> graph;  // of a plan

  const Attribute* find(int name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? nullptr : &found->second;
  }
  ContentPointer descriptor(int name) const {
    const Attribute* const attribute = find(name);
    return attribute == nullptr || attribute->descriptors.empty() ? nullptr
                                                                  : attribute->descriptors.front();
  }
  template <typename T>
  T value(int name, T otherwise) const {
    const Attribute* const attribute = find(name);
    if (attribute != nullptr && attribute->bytes.size() >= sizeof(T)) {
      std::memcpy(&otherwise, attribute->bytes.data(), sizeof(T));
    }
    return otherwise;
  }
};

struct Descriptor {
  ContentPointer content;
};

Descriptor& descriptor_of(cudnnBackendDescriptor_t handle) {
  return *static_cast<Descriptor*>(handle);
}

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // enumerations, int32 and float
  }
}

// ---- from descriptors to a graph

using Tensors = std::map<const Content*, GraphTensorPointer>;

GraphTensorPointer tensor_of(const ContentPointer& content, Tensors& known) {
  if (content == nullptr) {
    return nullptr;
  }
  const auto found = known.find(content.get());
  if (found != known.end()) {
    return found->second;
  }
  const auto tensor = std::make_shared<GraphTensor>();
  tensor->id = content->value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  tensor->type = content->value(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  tensor->is_virtual = content->value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  tensor->is_by_value = content->value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  tensor->alignment = content->value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
  const auto dims = content->find(CUDNN_ATTR_TENSOR_DIMENSIONS)->values<int64_t>();
  const auto strides = content->find(CUDNN_ATTR_TENSOR_STRIDES)->values<int64_t>();
  tensor->dims.fill(1);
  tensor->strides.fill(1);
  for (size_t axis = 0; axis < dims.size() && axis < 4; ++axis) {
    tensor->dims[axis] = dims[axis];
    tensor->strides[axis] = strides[axis];
  }
  tensor->ragged = tensor_of(content->descriptor(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC), known);
  known.emplace(content.get(), tensor);
  return tensor;
}

class GraphReader {
 public:
  // Null, with the reason as the last error, where an operation is unknown.
  std::shared_ptr<Graph> read(const Content& operation_graph) {
    auto graph = std::make_shared<Graph>();
    const Attribute* const operations = operation_graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (operations == nullptr) {
      return nullptr;
    }
    for (const ContentPointer& content : operations->descriptors) {
      GraphOperation operation;
      if (!read(*content, operation)) {
        fail(CUDNN_STATUS_NOT_SUPPORTED, "an operation that attention does not use");
        return nullptr;
      }
      graph->add(std::move(operation));
    }
    return graph;
  }

 private:
  GraphTensorPointer tensor(const Content& content, int name) {
    return tensor_of(content.descriptor(name), tensors_);
  }
  void add_inputs(GraphOperation& operation, const Content& content,
                  std::initializer_list<int> names) {
    for (const int name : names) {
      const GraphTensorPointer input = tensor(content, name);
      if (input != nullptr) {
        operation.inputs.push_back(input);
      }
    }
  }

  bool read(const Content& content, GraphOperation& operation) {
    switch (content.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        read_pointwise(content, operation);
        return true;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        read_matmul(content, operation);
        return true;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        operation.kind = GraphOperationKind::kReduction;
        add_inputs(operation, content, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC});
        operation.output = tensor(content, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        operation.mode = content.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                             ->value<int>(CUDNN_ATTR_REDUCTION_OPERATOR, -1);
        return true;
      case CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR:
        read_random(content, operation);
        return true;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        operation.kind = GraphOperationKind::kReshape;
        add_inputs(operation, content, {CUDNN_ATTR_OPERATION_RESHAPE_XDESC});
        operation.output = tensor(content, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        return true;
      default:
        return false;
    }
  }
  void read_pointwise(const Content& content, GraphOperation& operation) {
    operation.kind = GraphOperationKind::kPointwise;
    add_inputs(operation, content,
               {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                CUDNN_ATTR_OPERATION_POINTWISE_TDESC});
    operation.output = tensor(content, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const ContentPointer mode = content.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    operation.mode = mode->value<int>(CUDNN_ATTR_POINTWISE_MODE, -1);
    operation.axis = mode->value<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
  }
  void read_matmul(const Content& content, GraphOperation& operation) {
    operation.kind = GraphOperationKind::kMatmul;
    add_inputs(operation, content,
               {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC});
    operation.output = tensor(content, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    operation.m = tensor(content, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
    operation.n = tensor(content, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
    operation.k = tensor(content, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
    const ContentPointer how = content.descriptor(CUDNN_ATTR_OPERATION_MATMUL_DESC);
    if (how->find(CUDNN_ATTR_MATMUL_PADDING_VALUE) != nullptr) {
      operation.padding = how->value<double>(CUDNN_ATTR_MATMUL_PADDING_VALUE, 0.0);
    }
  }
  void read_random(const Content& content, GraphOperation& operation) {
    operation.kind = GraphOperationKind::kRng;
    add_inputs(operation, content,
               {CUDNN_ATTR_OPERATION_RNG_SEED, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC});
    operation.output = tensor(content, CUDNN_ATTR_OPERATION_RNG_YDESC);
    operation.probability = content.descriptor(CUDNN_ATTR_OPERATION_RNG_DESC)
                                ->value<double>(CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, 1.0);
  }

  Tensors tensors_;
};

// The operation graph behind a configuration.
ContentPointer graph_of_configuration(const Content& configuration) {
  const ContentPointer engine = configuration.descriptor(CUDNN_ATTR_ENGINECFG_ENGINE);
  return engine == nullptr ? nullptr : engine->descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

cudnnStatus_t finalize_plan(Content& plan) {
  const ContentPointer configuration = plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const ContentPointer operations =
      configuration == nullptr ? nullptr : graph_of_configuration(*configuration);
  if (operations == nullptr) {
    return fail(CUDNN_STATUS_BAD_PARAM, "a plan without a configuration");
  }
  plan.graph = GraphReader().read(*operations);
  if (plan.graph == nullptr) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  const char* const reason = FakeCudnn::calls().has_no_engine ? "no engine" : plan.graph->refusal();
  if (reason != nullptr) {
    return fail(CUDNN_STATUS_NOT_SUPPORTED, reason);
  }
  ++FakeCudnn::calls().plans;
  FakeCudnn::calls().engine = configuration->descriptor(CUDNN_ATTR_ENGINECFG_ENGINE)
                                  ->value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
  return CUDNN_STATUS_SUCCESS;
}

// What the heuristics answer: engine 0, without knobs.
ContentPointer default_configuration(const ContentPointer& operations) {
  const auto engine = std::make_shared<Content>();
  engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH].descriptors = {operations};
  engine->is_finalized = true;
  const auto configuration = std::make_shared<Content>();
  configuration->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  configuration->attributes[CUDNN_ATTR_ENGINECFG_ENGINE].descriptors = {engine};
  configuration->is_finalized = true;
  return configuration;
}

// ---- the library's functions

cudnnStatus_t create(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new cudaStream_t(nullptr));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy(cudnnHandle_t handle) {
  delete reinterpret_cast<cudaStream_t*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  *reinterpret_cast<cudaStream_t*>(handle) = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t get_stream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = *reinterpret_cast<cudaStream_t*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
size_t version() { return reported_version; }
const char* error_string(cudnnStatus_t) { return "a status of the stand-in"; }
void last_error_string(char* message, size_t size) {
  std::strncpy(message, last_error.c_str(), size);
  message[size - 1] = '\0';
}

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t* descriptor) {
  auto made = std::make_unique<Descriptor>();
  made->content = std::make_shared<Content>();
  made->content->type = type;
  *descriptor = made.release();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  Content& content = *descriptor_of(descriptor).content;
  if (content.is_finalized) {
    return fail(CUDNN_STATUS_BAD_PARAM, "an attribute of a descriptor that is finalized");
  }
  Attribute attribute{.type = type, .count = count, .bytes = {}, .descriptors = {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const auto given = static_cast<const cudnnBackendDescriptor_t*>(elements)[i];
      if (given == nullptr || !descriptor_of(given).content->is_finalized) {
        return fail(CUDNN_STATUS_BAD_PARAM, "a descriptor used before it is finalized");
      }
      attribute.descriptors.push_back(descriptor_of(given).content);
    }
  } else {
    const auto* const bytes = static_cast<const char*>(elements);
    attribute.bytes.assign(bytes, bytes + static_cast<size_t>(count) * size_of(type));
  }
  content.attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_descriptors(const std::vector<ContentPointer>& found, int64_t wanted,
                              int64_t* count, void* elements) {
  if (count != nullptr) {
    *count = static_cast<int64_t>(found.size());
  }
  for (size_t i = 0; i < found.size() && static_cast<int64_t>(i) < wanted; ++i) {
    descriptor_of(static_cast<cudnnBackendDescriptor_t*>(elements)[i]).content = found[i];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_number(int64_t value, int64_t* count, void* elements) {
  if (count != nullptr) {
    *count = 1;
  }
  std::memcpy(elements, &value, sizeof value);
  return CUDNN_STATUS_SUCCESS;
}

// As they were set.
cudnnStatus_t get_bytes(const Attribute* attribute, void* elements) {
  if (attribute == nullptr) {
    return fail(CUDNN_STATUS_BAD_PARAM, "an attribute that was not set");
  }
  std::memcpy(elements, attribute->bytes.data(), attribute->bytes.size());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count,
                            void* elements) {
  const Content& content = *descriptor_of(descriptor).content;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      if (elements == nullptr) {
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
      }
      ++FakeCudnn::calls().heuristics;
      const ContentPointer operations = content.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      return get_descriptors({default_configuration(operations)}, wanted, count, elements);
    }
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      return get_number(kEngines, count, elements);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
      return get_number(kWorkspaceBytes, count, elements);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return get_number(content.value<int64_t>(name, 0), count, elements);
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      return get_bytes(content.find(name), elements);
    default:
      break;
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const Attribute* const attribute = content.find(name);
    return get_descriptors(
        attribute == nullptr ? std::vector<ContentPointer>{} : attribute->descriptors, wanted,
        count, elements);
  }
  if (count == nullptr) {
    return fail(CUDNN_STATUS_NOT_SUPPORTED, "an attribute that the stand-in does not have");
  }
  *count = 0;  // notes: none
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  Content& content = *descriptor_of(descriptor).content;
  if (content.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const cudnnStatus_t status = finalize_plan(content);
    if (status != CUDNN_STATUS_SUCCESS) {
      return status;
    }
  }
  content.is_finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack) {
  const Content& content = *descriptor_of(pack).content;
  const Attribute* const ids = content.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const Attribute* const addresses = content.find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto workspace = content.value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (handle == nullptr || ids == nullptr || addresses == nullptr || workspace == nullptr ||
      ids->count != addresses->count || descriptor_of(plan).content->graph == nullptr) {
    return fail(CUDNN_STATUS_BAD_PARAM, "a variant pack that is not complete");
  }
  const cuda_emulator::DeviceAccess access;
  std::memset(workspace, 0xFF, static_cast<size_t>(kWorkspaceBytes));  // it may be used
  std::map<int64_t, void*> pointers;
  const auto all_ids = ids->values<int64_t>();
  const auto all_addresses = addresses->values<void*>();
  for (size_t i = 0; i < all_ids.size(); ++i) {
    pointers[all_ids[i]] = all_addresses[i];
  }
  if (!descriptor_of(plan).content->graph->run(pointers)) {
    return fail(CUDNN_STATUS_BAD_PARAM, "a pointer that is missing or misaligned");
  }
  ++FakeCudnn::calls().executions;
  return CUDNN_STATUS_SUCCESS;
}

void* find(const char* name) {
  const struct {
    const char* name;
    void* function;
  } functions[] = {
      {"cudnnCreate", reinterpret_cast<void*>(&create)},
      {"cudnnDestroy", reinterpret_cast<void*>(&destroy)},
      {"cudnnGetVersion", reinterpret_cast<void*>(&version)},
      {"cudnnSetStream", reinterpret_cast<void*>(&set_stream)},
      {"cudnnGetStream", reinterpret_cast<void*>(&get_stream)},
      {"cudnnGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cudnnGetLastErrorString", reinterpret_cast<void*>(&last_error_string)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(&create_descriptor)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void*>(&destroy_descriptor)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(&set_attribute)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void*>(&get_attribute)},
      {"cudnnBackendFinalize", reinterpret_cast<void*>(&finalize)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(&execute)},
  };
  for (const auto& known : functions) {
    if (std::strcmp(name, known.name) == 0) {
      return known.function;
    }
  }
  return nullptr;
}

}  // namespace

FakeCudnn::FakeCudnn(size_t version) {
  calls() = {};
  reported_version = version;
  cuda::replace_cudnn(&find);
}
FakeCudnn::~FakeCudnn() { cuda::replace_cudnn(nullptr); }
CudnnCalls& FakeCudnn::calls() {
  static CudnnCalls counted;
  return counted;
}

}  // namespace transformer_engine::testing
