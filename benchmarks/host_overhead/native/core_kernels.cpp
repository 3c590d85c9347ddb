// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The core's CPU kernels without their work. Only the bodies go: the argument checks of ops/ and
// the walk of the candidate list still run, they are host work. Loaded with global symbols before
// the core, these definitions take the place of the core's own (ELF symbol interposition), whose
// declarations are included so that a changed signature fails to compile.
#include "cpu/activation.h"
#include "cpu/block_scaling.h"
#include "cpu/cast.h"
#include "cpu/gemm.h"
#include "cpu/normalization.h"
#include "cpu/nvfp4.h"
#include "cpu/softmax.h"
#include "kernel_count.h"

int64_t te_allocate_only_core_kernels = 0;

namespace transformer_engine {

namespace {
void count() { ++te_allocate_only_core_kernels; }
}  // namespace

void cpu::gemm_packed(const GemmArgs& args, const Context& context) { count(); }
void cpu::gemm_skinny(const GemmArgs& args, const Context& context) { count(); }
void cpu::norm_forward(const NormForwardArgs& args, const Context& context) { count(); }
void cpu::norm_backward(const NormBackwardArgs& args, const Context& context) { count(); }
void cpu::quantize(const QuantizeArgs& args, const Context& context) { count(); }
void cpu::dequantize(const DequantizeArgs& args, const Context& context) { count(); }
void cpu::quantize_fp8_blocks(const QuantizeFp8BlocksArgs& args, const Context& context) {
  count();
}
void cpu::quantize_mxfp8(const QuantizeMxfp8Args& args, const Context& context) { count(); }
void cpu::dequantize_blocks(const DequantizeBlocksArgs& args, const Context& context) { count(); }
void cpu::compute_nvfp4_amax(const Nvfp4AmaxProblem& problem, const Context& context) { count(); }
void cpu::quantize_nvfp4(const QuantizeNvfp4Args& args, const Context& context) { count(); }
void cpu::transpose_bytes(const TransposeArgs& args, const Context& context) { count(); }
void cpu::compute_amax(const AmaxArgs& args, const Context& context) { count(); }
void cpu::delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context) {
  count();
}
void cpu::activation_forward(const ActivationForwardArgs& args, const Context& context) { count(); }
void cpu::activation_backward(const ActivationBackwardArgs& args, const Context& context) {
  count();
}
void cpu::bias_gradient(const BiasGradientArgs& args, const Context& context) { count(); }
void cpu::softmax_forward(const SoftmaxForwardArgs& args, const Context& context) { count(); }
void cpu::softmax_backward(const SoftmaxBackwardArgs& args, const Context& context) { count(); }

}  // namespace transformer_engine
