// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/fake_cudnn_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "numerics/half.h"
#include "numerics/minifloat.h"
#include "numerics/philox.h"

namespace transformer_engine::testing {

namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// ---- memory

int64_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT64:
      return 8;
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
      return 1;
    default:
      return 4;
  }
}

double load(const void* data, cudnnDataType_t type, int64_t i) {
  switch (type) {
    case CUDNN_DATA_HALF:
      return numerics::float_from_fp16(static_cast<const uint16_t*>(data)[i]);
    case CUDNN_DATA_BFLOAT16:
      return numerics::float_from_bf16(static_cast<const uint16_t*>(data)[i]);
    case CUDNN_DATA_FP8_E4M3:
      return numerics::decode<numerics::E4M3>(static_cast<const uint8_t*>(data)[i]);
    case CUDNN_DATA_FP8_E5M2:
      return numerics::decode<numerics::E5M2>(static_cast<const uint8_t*>(data)[i]);
    case CUDNN_DATA_INT32:
      return static_cast<const int32_t*>(data)[i];
    case CUDNN_DATA_INT64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

void store(void* data, cudnnDataType_t type, int64_t i, double value) {
  switch (type) {
    case CUDNN_DATA_HALF:
      static_cast<uint16_t*>(data)[i] = numerics::fp16_from_float(static_cast<float>(value));
      break;
    case CUDNN_DATA_BFLOAT16:
      static_cast<uint16_t*>(data)[i] = numerics::bf16_from_float(static_cast<float>(value));
      break;
    case CUDNN_DATA_FP8_E4M3:
      static_cast<uint8_t*>(data)[i] = numerics::encode<numerics::E4M3>(static_cast<float>(value));
      break;
    case CUDNN_DATA_FP8_E5M2:
      static_cast<uint8_t*>(data)[i] = numerics::encode<numerics::E5M2>(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

bool is_fp8(cudnnDataType_t type) {
  return type == CUDNN_DATA_FP8_E4M3 || type == CUDNN_DATA_FP8_E5M2;
}

// ---- values

int64_t count_of(const Index4& dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

struct Value {
  Index4 dims{};
  std::vector<double> data;

  explicit Value(const Index4& of)
      : dims(of), data(static_cast<size_t>(count_of(of)), kUndefined) {}
  // Along a dimension of 1, every index means the only one.
  double at(const Index4& i) const { return data[offset(i)]; }
  double& at(const Index4& i) { return data[offset(i)]; }

 private:
  size_t offset(const Index4& i) const {
    int64_t offset = 0;
    for (size_t axis = 0; axis < 4; ++axis) {
      offset = offset * dims[axis] + (dims[axis] == 1 ? 0 : i[axis]);
    }
    return static_cast<size_t>(offset);
  }
};

template <typename Body>
void for_each(const Index4& dims, const Body& body) {
  Index4 i{};
  for (i[0] = 0; i[0] < dims[0]; ++i[0]) {
    for (i[1] = 0; i[1] < dims[1]; ++i[1]) {
      for (i[2] = 0; i[2] < dims[2]; ++i[2]) {
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) {
          body(i);
        }
      }
    }
  }
}

// Where the elements of a tensor lie in memory.
class Layout {
 public:
  Layout(const GraphTensor& tensor, const std::map<int64_t, void*>& pointers) : tensor_(tensor) {
    if (tensor.ragged != nullptr) {
      const void* const starts = pointers.at(tensor.ragged->id);
      for (int64_t b = 0; b <= tensor.dims[0]; ++b) {
        starts_.push_back(static_cast<int64_t>(load(starts, tensor.ragged->type, b)));
      }
      // Rows run along the dimension with the larger stride: K is given transposed.
      rows_ = tensor.strides[2] >= tensor.strides[3] || tensor.dims[3] == 1 ? 2 : 3;
    }
  }
  bool has(const Index4& i) const {
    if (starts_.empty()) {
      return true;
    }
    const auto b = static_cast<size_t>(i[0]);
    return i[rows_] * tensor_.strides[rows_] < starts_[b + 1] - starts_[b];
  }
  int64_t offset(const Index4& i) const {
    int64_t offset =
        starts_.empty() ? i[0] * tensor_.strides[0] : starts_[static_cast<size_t>(i[0])];
    for (size_t axis = 1; axis < 4; ++axis) {
      offset += i[axis] * tensor_.strides[axis];
    }
    return offset;
  }

 private:
  const GraphTensor& tensor_;
  std::vector<int64_t> starts_;
  size_t rows_ = 2;
};

// ---- operations

double compute(int mode, double x, double b, double t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_MAX:
      return std::fmax(x, b);
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_IDENTITY:
      return x;
    case CUDNN_POINTWISE_CMP_LT:
      return x < b;
    case CUDNN_POINTWISE_CMP_GT:
      return x > b;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b;
    case CUDNN_POINTWISE_LOGICAL_AND:
      return x != 0.0 && b != 0.0;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0.0 ? x : b;
    default:
      return kUndefined;
  }
}
constexpr int kPointwiseModes[] = {
    CUDNN_POINTWISE_ADD,           CUDNN_POINTWISE_SUB,      CUDNN_POINTWISE_MUL,
    CUDNN_POINTWISE_DIV,           CUDNN_POINTWISE_MAX,      CUDNN_POINTWISE_EXP,
    CUDNN_POINTWISE_LOG,           CUDNN_POINTWISE_IDENTITY, CUDNN_POINTWISE_CMP_LT,
    CUDNN_POINTWISE_CMP_GT,        CUDNN_POINTWISE_CMP_GE,   CUDNN_POINTWISE_LOGICAL_AND,
    CUDNN_POINTWISE_BINARY_SELECT, CUDNN_POINTWISE_GEN_INDEX};

class Run {
 public:
  Run(const std::vector<GraphOperation>& operations, const std::map<int64_t, void*>& pointers)
      : operations_(operations), pointers_(pointers) {
    for (const GraphOperation& operation : operations) {
      for (const GraphTensorPointer& input : operation.inputs) {
        consumed_.insert(input->id);
      }
      produced_.insert(operation.output->id);
    }
  }

  // Operations as soon as their inputs are there, whatever their order.
  void run() {
    std::vector<const GraphOperation*> waiting;
    for (const GraphOperation& operation : operations_) {
      waiting.push_back(&operation);
    }
    while (!waiting.empty()) {
      const auto ready = std::find_if(waiting.begin(), waiting.end(),
                                      [&](const auto* operation) { return is_ready(*operation); });
      if (ready == waiting.end()) {
        return;  // a cycle: its results stay undefined
      }
      run(**ready);
      waiting.erase(ready);
    }
  }

 private:
  bool is_ready(const GraphOperation& operation) const {
    return std::all_of(operation.inputs.begin(), operation.inputs.end(), [&](const auto& input) {
      return produced_.count(input->id) == 0 || values_.count(input->id) != 0;
    });
  }

  Value read(const GraphTensor& tensor) const {
    const auto known = values_.find(tensor.id);
    if (known != values_.end()) {
      return known->second;
    }
    Value value(tensor.dims);
    const Layout layout(tensor, pointers_);
    const void* const data = pointers_.at(tensor.id);
    for_each(tensor.dims, [&](const Index4& i) {
      if (layout.has(i)) {
        value.at(i) = load(data, tensor.type, layout.offset(i));
      }
    });
    return value;
  }

  void run(const GraphOperation& operation) {
    Value result(operation.output->dims);
    std::vector<bool> is_written(result.data.size(), true);
    switch (operation.kind) {
      case GraphOperationKind::kPointwise:
        pointwise(operation, result);
        break;
      case GraphOperationKind::kMatmul:
        matmul(operation, result, is_written);
        break;
      case GraphOperationKind::kReduction:
        reduce(operation, result);
        break;
      case GraphOperationKind::kRng:
        random(operation, result);
        break;
      case GraphOperationKind::kReshape:
        transpose(operation, result);
        break;
    }
    const GraphTensor& output = *operation.output;
    if (is_fp8(output.type)) {
      round(result, output.type);
    }
    // A tensor between two operations may lie in the workspace: nobody sees it.
    if (!output.is_virtual && consumed_.count(output.id) == 0) {
      if (operation.kind == GraphOperationKind::kReduction &&
          operation.mode == CUDNN_REDUCE_TENSOR_AMAX) {
        include_memory(output, result);
      }
      write(output, result, is_written);
    }
    values_.insert_or_assign(output.id, std::move(result));
  }

  // A kernel may take the largest of what it finds and what memory holds.
  void include_memory(const GraphTensor& tensor, Value& value) const {
    const Value old = read(tensor);
    for (size_t i = 0; i < value.data.size(); ++i) {
      value.data[i] = std::fmax(value.data[i], old.data[i]);
    }
  }

  static void round(Value& value, cudnnDataType_t type) {
    for (double& element : value.data) {
      uint8_t code = 0;
      store(&code, type, 0, element);
      element = load(&code, type, 0);
    }
  }

  void write(const GraphTensor& tensor, const Value& value, const std::vector<bool>& is_written) {
    const Layout layout(tensor, pointers_);
    void* const data = pointers_.at(tensor.id);
    size_t number = 0;
    for_each(tensor.dims, [&](const Index4& i) {
      if (is_written[number++] && layout.has(i)) {
        store(data, tensor.type, layout.offset(i), value.at(i));
      }
    });
  }

  void pointwise(const GraphOperation& operation, Value& result) const {
    if (operation.mode == CUDNN_POINTWISE_GEN_INDEX) {
      for_each(result.dims, [&](const Index4& i) {
        result.at(i) = static_cast<double>(i[static_cast<size_t>(operation.axis)]);
      });
      return;
    }
    std::vector<Value> in;
    for (const GraphTensorPointer& input : operation.inputs) {
      in.push_back(read(*input));
    }
    for_each(result.dims, [&](const Index4& i) {
      result.at(i) = compute(operation.mode, in[0].at(i), in.size() > 1 ? in[1].at(i) : 0.0,
                             in.size() > 2 ? in[2].at(i) : 0.0);
    });
  }

  int64_t limit(const GraphTensorPointer& lengths, int64_t batch, int64_t size) const {
    return lengths == nullptr
               ? size
               : std::min(size, static_cast<int64_t>(read(*lengths).at({batch, 0, 0, 0})));
  }

  void matmul(const GraphOperation& operation, Value& result, std::vector<bool>& is_written) const {
    const Value a = read(*operation.inputs[0]);
    const Value b = read(*operation.inputs[1]);
    size_t number = 0;
    for_each(result.dims, [&](const Index4& i) {
      const bool is_inside = i[2] < limit(operation.m, i[0], result.dims[2]) &&
                             i[3] < limit(operation.n, i[0], result.dims[3]);
      is_written[number++] = is_inside;
      if (!is_inside) {
        result.at(i) = operation.padding;
        return;
      }
      // Heads of a group share the second operand.
      const int64_t group = i[1] / (result.dims[1] / b.dims[1]);
      const int64_t depth = limit(operation.k, i[0], a.dims[3]);
      double sum = 0.0;
      for (int64_t j = 0; j < depth; ++j) {
        sum += a.at({i[0], i[1], i[2], j}) * b.at({i[0], group, j, i[3]});
      }
      result.at(i) = sum;
    });
  }

  void reduce(const GraphOperation& operation, Value& result) const {
    const Value x = read(*operation.inputs[0]);
    const bool is_sum = operation.mode == CUDNN_REDUCE_TENSOR_ADD;
    const bool is_magnitude = operation.mode == CUDNN_REDUCE_TENSOR_AMAX;
    std::fill(result.data.begin(), result.data.end(),
              is_sum || is_magnitude ? 0.0 : -std::numeric_limits<double>::infinity());
    for_each(x.dims, [&](const Index4& i) {
      Index4 to{};
      for (size_t axis = 0; axis < 4; ++axis) {
        to[axis] = i[axis] / (x.dims[axis] / result.dims[axis]);
      }
      double& sum = result.at(to);
      const double term = is_magnitude ? std::abs(x.at(i)) : x.at(i);
      sum = is_sum ? sum + term : std::fmax(sum, term);
    });
  }

  // The rule of reference/attention.cpp, so that results can be compared.
  void random(const GraphOperation& operation, Value& result) const {
    const auto number = [&](size_t input) {
      return static_cast<uint64_t>(
          static_cast<const int64_t*>(pointers_.at(operation.inputs[input]->id))[0]);
    };
    const uint64_t seed = number(0);
    const uint64_t offset = number(1);
    uint64_t counter = 0;
    for_each(result.dims, [&](const Index4& i) {
      const auto words = numerics::philox4x32_10<uint32_t>(
          {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
            static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
          numerics::philox_key(seed));
      result.at(i) = words.word[0] * 0x1p-32 < 1.0 - operation.probability ? 0.0 : 1.0;
      ++counter;
    });
  }

  // The same memory with the last two dimensions exchanged.
  void transpose(const GraphOperation& operation, Value& result) const {
    const Value x = read(*operation.inputs[0]);
    for_each(result.dims, [&](const Index4& i) { result.at(i) = x.at({i[0], i[1], i[3], i[2]}); });
  }

  const std::vector<GraphOperation>& operations_;
  const std::map<int64_t, void*>& pointers_;
  std::set<int64_t> consumed_, produced_;
  std::map<int64_t, Value> values_;
};

// ---- what is supported

bool is_transposition(const GraphTensor& x, const GraphTensor& y) {
  return x.dims[0] == y.dims[0] && x.dims[1] == y.dims[1] && x.dims[2] == y.dims[3] &&
         x.dims[3] == y.dims[2] && x.strides[2] == y.strides[3] && x.strides[3] == y.strides[2];
}

bool fits_broadcast(const GraphTensor& input, const GraphTensor& output) {
  for (size_t axis = 0; axis < 4; ++axis) {
    if (input.dims[axis] != 1 && input.dims[axis] != output.dims[axis]) {
      return false;
    }
  }
  return true;
}

const char* refusal_of_matmul(const GraphOperation& operation) {
  const GraphTensor& a = *operation.inputs[0];
  const GraphTensor& b = *operation.inputs[1];
  const GraphTensor& c = *operation.output;
  const bool fits = a.dims[0] == b.dims[0] && a.dims[0] == c.dims[0] && a.dims[1] == c.dims[1] &&
                    c.dims[1] % b.dims[1] == 0 && a.dims[2] == c.dims[2] &&
                    a.dims[3] == b.dims[2] && b.dims[3] == c.dims[3];
  return fits ? nullptr : "a matrix product of tensors that do not fit";
}

const char* refusal_of_reduction(const GraphOperation& operation) {
  if (operation.mode != CUDNN_REDUCE_TENSOR_ADD && operation.mode != CUDNN_REDUCE_TENSOR_MAX &&
      operation.mode != CUDNN_REDUCE_TENSOR_AMAX) {
    return "a reduction other than ADD, MAX and AMAX";
  }
  for (size_t axis = 0; axis < 4; ++axis) {
    if (operation.inputs[0]->dims[axis] % operation.output->dims[axis] != 0) {
      return "a reduction to dimensions that do not divide its input's";
    }
  }
  return nullptr;
}

const char* refusal_of_pointwise(const GraphOperation& operation) {
  if (std::find(std::begin(kPointwiseModes), std::end(kPointwiseModes), operation.mode) ==
      std::end(kPointwiseModes)) {
    return "a pointwise mode that attention does not use";
  }
  for (const GraphTensorPointer& input : operation.inputs) {
    if (!fits_broadcast(*input, *operation.output)) {
      return "a pointwise input that does not broadcast to the output";
    }
  }
  return nullptr;
}

// Of tensors in memory of 16 bits and of 8.
const char* refusal_of_tensor(const GraphTensor& tensor) {
  if (tensor.is_virtual || tensor.is_by_value || bytes_of(tensor.type) > 2) {
    return nullptr;
  }
  int units = 0;
  for (size_t axis = 0; axis < 4; ++axis) {
    const int64_t stride = tensor.strides[axis];
    units += stride == 1 ? 1 : 0;
    if (stride != 1 && stride * bytes_of(tensor.type) % tensor.alignment != 0) {
      return "a stride that is no multiple of the alignment";
    }
  }
  return units == 0 ? "a tensor without a stride of 1" : nullptr;
}

}  // namespace

const char* Graph::refusal() const {
  for (const GraphOperation& operation : operations_) {
    const char* reason = refusal_of_tensor(*operation.output);
    for (const GraphTensorPointer& input : operation.inputs) {
      reason = reason == nullptr ? refusal_of_tensor(*input) : reason;
    }
    if (reason == nullptr && operation.kind == GraphOperationKind::kMatmul) {
      reason = refusal_of_matmul(operation);
    } else if (reason == nullptr && operation.kind == GraphOperationKind::kReduction) {
      reason = refusal_of_reduction(operation);
    } else if (reason == nullptr && operation.kind == GraphOperationKind::kPointwise) {
      reason = refusal_of_pointwise(operation);
    } else if (reason == nullptr && operation.kind == GraphOperationKind::kReshape &&
               !is_transposition(*operation.inputs[0], *operation.output)) {
      reason = "a reshape that does not exchange the last two dimensions";
    }
    if (reason != nullptr) {
      return reason;
    }
  }
  return nullptr;
}

bool Graph::run(const std::map<int64_t, void*>& pointers) const {
  for (const GraphOperation& operation : operations_) {
    std::vector<GraphTensorPointer> tensors = operation.inputs;
    tensors.push_back(operation.output);
    for (const GraphTensorPointer& extra : {operation.m, operation.n, operation.k}) {
      if (extra != nullptr) {
        tensors.push_back(extra);
      }
    }
    for (const GraphTensorPointer& tensor : tensors) {
      if (tensor->is_virtual) {
        continue;
      }
      const auto found = pointers.find(tensor->id);
      if (found == pointers.end() || found->second == nullptr ||
          (!tensor->is_by_value &&
           reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(tensor->alignment) !=
               0) ||
          (tensor->ragged != nullptr && pointers.count(tensor->ragged->id) == 0)) {
        return false;
      }
    }
  }
  Run(operations_, pointers).run();
  return true;
}

}  // namespace transformer_engine::testing
