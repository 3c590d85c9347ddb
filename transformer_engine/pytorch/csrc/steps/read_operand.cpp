// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/read_operand.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "steps/python_call.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

// Checks the buffers of one quantized tensor, so that a kernel may read all their elements.
struct BufferCheck {
  const OperandOwner& owner;
  const at::Device& device;

  std::string who(const std::string& name) const {
    return concat(owner.label, ": ", owner.argument, " has ", name);
  }

  at::Tensor operator()(const std::string& name, py::handle value, at::ScalarType dtype,
                        at::IntArrayRef sizes) const {
    TE_CHECK(!value.is_none(), who(name), " None; ", at::toString(dtype), " values of shape ",
             sizes, " are required. Quantize it again.");
    TE_CHECK_TYPE(THPVariable_Check(value.ptr()), who("a " + name), " of type ",
                  Py_TYPE(value.ptr())->tp_name, "; a tensor is required. Quantize it again.");
    const at::Tensor& buffer = THPVariable_Unpack(value.ptr());
    TE_CHECK_TYPE(buffer.scalar_type() == dtype && buffer.layout() == at::kStrided &&
                      !is_python_tensor(buffer),
                  who("a " + name), " of dtype ", at::toString(buffer.scalar_type()),
                  " and layout ", buffer.layout(), "; a plain tensor of ", at::toString(dtype),
                  " is required. Quantize it again.");
    TE_CHECK(buffer.device() == device, who("a " + name), " on ", buffer.device().str(), "; ",
             device.str(), " is required. Move the whole tensor.");
    TE_CHECK(buffer.sizes() == sizes, who("a " + name), " of shape ", buffer.sizes(), "; ", sizes,
             " is required. Quantize it again.");
    TE_CHECK(buffer.numel() == 0 || buffer.storage().nbytes() > 0, who("a " + name), " of ",
             buffer.numel(),
             " elements without memory; allocated memory is required. Gather it before use.");
    return buffer.contiguous();
  }
};

bool is_dtype_of_kind(CopyKind kind, DType dtype) {
  switch (kind) {
    case CopyKind::kPlain:
      return is_high_precision(dtype);
    case CopyKind::kNvfp4:
      return dtype == DType::kFloat4E2M1;
    default:
      return is_fp8(dtype);
  }
}

const char* dtypes_of_kind(CopyKind kind) {
  return kind == CopyKind::kPlain   ? "float32, bfloat16 or float16"
         : kind == CopyKind::kNvfp4 ? "kFloat4E2M1"
                                    : "kFloat8E4M3 or kFloat8E5M2";
}

// Names of the buffers as the tensor's attributes have them.
struct BufferNames {
  const char* data;
  const char* scale_inv;
  const char* amax;
  const char* dtype;
};

BufferNames names_of(CopyKind kind, bool is_columnwise) {
  if (kind == CopyKind::kPlain) {
    return {"_hp_data", "", "", "dtype"};
  }
  if (kind == CopyKind::kTensor) {
    return {is_columnwise ? "_transpose" : "_data", "_scale_inv", "", "_fp8_dtype"};
  }
  const char* const dtype = kind == CopyKind::kNvfp4 ? "_fp4_dtype" : "_fp8_dtype";
  return is_columnwise
             ? BufferNames{"_columnwise_data", "_columnwise_scale_inv", "_amax_columnwise", dtype}
             : BufferNames{"_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise", dtype};
}

// Data of a format keeps the tensor's sizes unless it is stored otherwise.
at::DimVector data_sizes(const CopyLayout& layout, const CopyFormat& format,
                         at::IntArrayRef sizes) {
  if (format.kind == CopyKind::kNvfp4 || layout.is_transposed) {
    return {layout.stored_rows, layout.data_row_bytes};
  }
  return at::DimVector(sizes.begin(), sizes.end());
}

}  // namespace

OperandCopy read_copy(py::handle parts, bool is_columnwise, at::IntArrayRef sizes,
                      const at::Device& device, const OperandOwner& owner) {
  OperandCopy copy;
  if (parts.is_none()) {
    return copy;
  }
  TE_CHECK_TYPE(PyTuple_Check(parts.ptr()) && PyTuple_GET_SIZE(parts.ptr()) == 6, owner.label, ": ",
                owner.argument,
                " has a _native_operand() of another form; (data, scale_inv, amax, "
                "kind, dtype, flags) is required for each copy.");
  const auto part = [&](Py_ssize_t i) { return py::handle(PyTuple_GET_ITEM(parts.ptr(), i)); };
  copy.format.kind = static_cast<CopyKind>(py::cast<int>(part(3)));
  TE_CHECK(copy.format.kind >= CopyKind::kPlain && copy.format.kind <= CopyKind::kNvfp4,
           owner.label, ": ", owner.argument, " has a copy of kind ",
           static_cast<int>(copy.format.kind), "; 0 to 5 is required.");
  copy.format.dtype = static_cast<DType>(py::cast<int>(part(4)));
  copy.format.flags = py::cast<int>(part(5));
  const CopyKind kind = copy.format.kind;
  const BufferNames names = names_of(kind, is_columnwise);
  TE_CHECK_TYPE(is_dtype_of_kind(kind, copy.format.dtype), owner.label, ": ", owner.argument,
                " has ", names.dtype, " ", static_cast<int>(copy.format.dtype), "; ",
                dtypes_of_kind(kind), " is required. Quantize it again.");
  const CopyLayout layout(copy.format, is_columnwise, matrix_sizes(sizes));
  const BufferCheck check{owner, device};
  if (kind == CopyKind::kPlain) {
    copy.data = check(names.data, part(0), scalar_type_of(copy.format.dtype), sizes);
    return copy;
  }
  copy.data = check(names.data, part(0), at::kByte, data_sizes(layout, copy.format, sizes));
  copy.scale_inv = check(names.scale_inv, part(1), scale_type(copy.format), layout.scale_sizes);
  if (layout.amax_numel != 0) {
    copy.amax = check(names.amax, part(2), at::kFloat, {layout.amax_numel});
  }
  return copy;
}

Operand read_operand(py::handle object, at::IntArrayRef sizes, const at::Device& device,
                     const OperandOwner& owner) {
  static const Name native_operand("_native_operand");
  const auto method =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), native_operand.object()));
  if (!method) {
    PyErr_Clear();
    throw NotImplementedError(
        concat(owner.label, ": ", owner.argument, " is a ", Py_TYPE(object.ptr())->tp_name,
               "; a plain tensor or a quantized tensor is required. Convert it first."));
  }
  const py::object parts = method();
  TE_CHECK_TYPE(PyTuple_Check(parts.ptr()) && PyTuple_GET_SIZE(parts.ptr()) == 2, owner.label, ": ",
                owner.argument,
                " has a _native_operand() of another form; (rowwise, columnwise) is required.");
  Operand operand;
  operand.sizes = matrix_sizes(sizes);
  operand.rowwise =
      read_copy(PyTuple_GET_ITEM(parts.ptr(), 0), /*is_columnwise=*/false, sizes, device, owner);
  operand.columnwise =
      read_copy(PyTuple_GET_ITEM(parts.ptr(), 1), /*is_columnwise=*/true, sizes, device, owner);
  TE_CHECK(operand.is_defined(), owner.label, ": ", owner.argument, " is a ",
           Py_TYPE(object.ptr())->tp_name,
           " without a copy; rowwise or columnwise data is required. Quantize it again.");
  return operand;
}

py::object copy_parts(const OperandCopy& copy) {
  if (!copy.is_defined()) {
    return py::none();
  }
  const auto optional = [](const at::Tensor& t) { return t.defined() ? py::cast(t) : py::none(); };
  return py::make_tuple(copy.data, optional(copy.scale_inv), optional(copy.amax),
                        static_cast<int>(copy.format.kind), static_cast<int>(copy.format.dtype),
                        copy.format.flags);
}

}  // namespace transformer_engine::pytorch
