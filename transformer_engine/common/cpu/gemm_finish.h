// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/gemm_shape.h"
#include "cpu/gemm_kernels.h"
#include "numerics/gemm_alpha.h"

namespace transformer_engine::cpu {

// The epilogue of a problem as the kernels take it.
inline GemmFinish gemm_finish(const GemmArgs& args) {
  GemmFinish finish;
  finish.alpha = gemm_alpha(args);
  finish.bias = args.bias.data;
  finish.bias_dtype = args.bias.dtype;
  finish.pre_epilogue = args.pre_epilogue.data;
  finish.d = args.d.data;
  finish.d_dtype = args.d.dtype;
  finish.d_stride = args.d.cols;
  finish.has_gelu = args.epilogue == GemmEpilogue::kGELU;
  finish.accumulate = args.accumulate;
  return finish;
}

}  // namespace transformer_engine::cpu
