// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA runtime that host code needs. One device, of the compute capability in
// CUDA_EMULATOR_ARCH (default 90); a stream is done when the call returns.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "capture.h"
#include "device_memory.h"
#include "launch_rules.h"
#include "sanitizers.h"
#include "stream_log.h"

namespace {

int compute_capability() {
  const char* text = std::getenv("CUDA_EMULATOR_ARCH");
  return text != nullptr ? std::atoi(text) : 90;
}

bool is_capturing = false;

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (is_capturing) {
    return cudaErrorStreamCaptureUnsupported;
  }
  *pointer = cuda_emulator::allocate_device_memory(bytes);
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* pointer) {
  cuda_emulator::free_device_memory(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  *pointer = cuda_emulator::allocate_device_memory(bytes);
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  const cuda_emulator::DeviceAccess access;
  std::memcpy(target, source, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t) {
  const cuda_emulator::DeviceAccess access;
  std::memset(target, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return is_capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return is_capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
// Streams and events are numbers: a stream is done when the call returns.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  static uintptr_t created = 0x1000;
  *stream = reinterpret_cast<cudaStream_t>(++created);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  static uintptr_t created = 0;
  *event = reinterpret_cast<cudaEvent_t>(++created);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cuda_emulator::log_stream({cuda_emulator::StreamStep::Act::kRecord, stream, event});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  cuda_emulator::log_stream({cuda_emulator::StreamStep::Act::kWait, stream, event});
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;  // few, so that grids sized by it have more work than blocks
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = compute_capability() / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = compute_capability() % 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = cuda_emulator::kMaxDynamicSharedBytes;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
const char* cudaGetErrorString(cudaError_t) { return "error of the emulated CUDA runtime"; }
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
      value > cuda_emulator::kMaxDynamicSharedBytes) {
    return cudaErrorInvalidValue;
  }
  cuda_emulator::set_shared_memory_limit(kernel, value);
  return cudaSuccess;
}

}  // extern "C"

namespace cuda_emulator {

CaptureScope::CaptureScope() { is_capturing = true; }
CaptureScope::~CaptureScope() { is_capturing = false; }

void trust_host_stack() {
  constexpr size_t kBytes = 64 * 1024;  // frames of a test and of the op that it calls
  initialisation::trust(__builtin_frame_address(0), kBytes);
}

}  // namespace cuda_emulator

// What the sanitizers are told unless the environment says otherwise.
extern "C" {
// Heap memory counts as initialised: only device and shared memory are under test. Nor are the
// stacks of libraries that are not instrumented, where they compare memory.
const char* __msan_default_options() {
  return "poison_in_malloc=0:poison_in_free=0:intercept_memcmp=0";
}
// That leaves the marks of who had the memory before.
void __sanitizer_malloc_hook(const volatile void* memory, size_t bytes) {
  cuda_emulator::initialisation::trust(const_cast<const void*>(memory), bytes);
}
const char* __tsan_default_options() { return "halt_on_error=1"; }
// Stacks of kernels that were stopped half-way are never freed.
const char* __asan_default_options() { return "detect_leaks=0"; }
}
