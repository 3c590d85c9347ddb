# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The scenarios: which tiny GPT is trained, on how many ranks, with which of Megatron's options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

VOCABULARY, SEQUENCE, BATCH, MICROBATCHES, STEPS = 128, 16, 2, 2, 3
FP8_RECIPES = {"delayed": "delayed", "current": "tensorwise", "mxfp8": "mxfp8"}  # Megatron's names


@dataclass(frozen=True, slots=True)
class Options:
    """What a run switches on; the defaults are a dense FP32 GPT on one rank.

    Attributes
    ----------
    tp, pp, cp, ep : int
        Sizes of tensor, pipeline, context and expert parallelism.
    sequence_parallel, bf16, cpu_init, distributed_optimizer, overlap_grad_reduce : bool
        Megatron's options of (nearly) these names.
    precision_aware : bool
        Megatron's option for its distributed optimizer: masters of BF16 weights as what those
        lack, and moments in FP8 and BF16.
    fp8 : str
        A key of FP8_RECIPES, or "" for none.
    fp8_parameters : bool
        With FP8, keep the weights of linear layers in it (Megatron's `fp8_param`).
    dropout : float
        Probability of both dropouts.
    grad_accum_fusion, qk_layernorm, zero_centered, rope_fusion, te_rng_tracker : bool
        Megatron's options of (nearly) these names.
    recompute : str
        "full", "selective" (attention), "modules" (attention and MLP) or "".
    swiglu : bool
        SwiGLU and RMSNorm without biases.
    query_groups, window, experts : int
        Groups of query heads, attended positions to the left, experts; 0 for Megatron's default.
    grouped_gemm, latent_attention, op_fuser : bool
        Grouped expert layers, multi-head latent attention, the MLP of fusible operations.
    init_by_name : bool
        Draw weights by their names, for layouts that Megatron would draw in another order.
    checkpoint : bool
        Save and load through Megatron's distributed checkpoints before the last step.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    bf16: bool = False
    fp8: str = ""
    fp8_parameters: bool = False
    cpu_init: bool = True
    dropout: float = 0.0
    grad_accum_fusion: bool = False
    distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    precision_aware: bool = False
    experts: int = 0
    grouped_gemm: bool = False
    query_groups: int = 0
    swiglu: bool = False
    latent_attention: bool = False
    recompute: str = ""
    qk_layernorm: bool = False
    zero_centered: bool = False
    rope_fusion: bool = False
    window: int = 0
    checkpoint: bool = False
    te_rng_tracker: bool = False
    op_fuser: bool = False
    init_by_name: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run of TE layers and what it is compared with.

    Attributes
    ----------
    options : Options
    ranks : int
    native : bool
        Whether Megatron's native layers run the scenario too.
    native_options : dict
        What differs for them.
    is_compared : bool
        Whether both must give the same losses and gradient norms: not where they draw apart.
    resumed_on : tuple of int
        Tensor-parallel sizes on which the last step is taken too, from a checkpoint of the run.
    """

    options: Options
    ranks: int = 1
    native: bool = True
    native_options: dict[str, Any] = field(default_factory=dict)
    is_compared: bool = True
    resumed_on: tuple[int, ...] = ()

    def native_run(self) -> Options:
        """The options of the run with Megatron's native layers."""
        return replace(self.options, **self.native_options)


_LLAMA = Options(swiglu=True, query_groups=2)
_TP2 = Options(tp=2)
_TP2_SP = replace(_TP2, sequence_parallel=True)
_MOE = Options(experts=4)
_MOE_GROUPED = replace(_MOE, grouped_gemm=True, init_by_name=True)
_UNGROUPED = {"grouped_gemm": False}
# Of weights that Megatron draws on the CPU the layers would keep no high-precision values.
_FP8_PARAMETERS = Options(
    bf16=True, fp8_parameters=True, cpu_init=False, distributed_optimizer=True
)
_DROPOUT = Options(dropout=0.1)

DENSE = {
    "dense": Scenario(Options()),
    "dense_bf16": Scenario(Options(bf16=True)),
    "llama": Scenario(_LLAMA),
    "gpu_init": Scenario(Options(cpu_init=False)),
    "dropout": Scenario(_DROPOUT, is_compared=False),
    "recompute_full": Scenario(Options(recompute="full")),
    "recompute_select": Scenario(Options(recompute="selective")),
    # Without biases: with the release of torch that this was written on, Megatron's own
    # recomputation of an MLP that returns its bias does not end.
    "recompute_modules": Scenario(Options(recompute="modules", swiglu=True)),
    "grad_accum_fusion": Scenario(Options(grad_accum_fusion=True)),
    "qk_layernorm": Scenario(Options(qk_layernorm=True)),
    "zero_centered": Scenario(Options(zero_centered=True)),
    "rope_fusion": Scenario(Options(rope_fusion=True), native_options={"rope_fusion": False}),
    "window": Scenario(Options(window=4)),
    "checkpoint": Scenario(Options(checkpoint=True)),
    "precision_aware": Scenario(
        Options(bf16=True, distributed_optimizer=True, precision_aware=True),
        native_options={"precision_aware": False},
    ),
    "te_rng_tracker": Scenario(replace(_DROPOUT, te_rng_tracker=True), native=False),
    "pp2": Scenario(Options(pp=2), ranks=2),
    "tp2": Scenario(_TP2, ranks=2),
    "tp2_bf16": Scenario(replace(_TP2, bf16=True), ranks=2),
    "tp2_sp": Scenario(_TP2_SP, ranks=2),
    "tp2_gpu_init": Scenario(replace(_TP2, cpu_init=False), ranks=2, is_compared=False),
    "tp2_sp_checkpoint": Scenario(replace(_TP2_SP, checkpoint=True), ranks=2),
    "tp2_sp_resharded": Scenario(_TP2_SP, ranks=2, native=False, resumed_on=(1, 4)),
    "fp8_parameters": Scenario(_FP8_PARAMETERS),
    "dp2_fp8_parameters": Scenario(replace(_FP8_PARAMETERS, overlap_grad_reduce=True), ranks=2),
    # Groups of queries, for a bias of 64: Megatron 0.16.1 confuses places in its buffer when it
    # gathers MXFP8 weights beside parameters whose size is no multiple of 64.
    "tp2_fp8_parameters": Scenario(
        replace(_FP8_PARAMETERS, tp=2, sequence_parallel=True, query_groups=2),
        ranks=2,
        is_compared=False,
    ),
}
"""The scenarios of dense models."""

OTHERS = {
    "llama_bf16_distopt": Scenario(replace(_LLAMA, bf16=True, distributed_optimizer=True)),
    "tp2_sp_llama": Scenario(
        replace(_LLAMA, tp=2, sequence_parallel=True, bf16=True, distributed_optimizer=True),
        ranks=2,
    ),
    "dp2_distopt": Scenario(
        Options(distributed_optimizer=True, overlap_grad_reduce=True, bf16=True), ranks=2
    ),
    "mla": Scenario(Options(latent_attention=True), native=False),
    "moe": Scenario(_MOE),
    "moe_grouped": Scenario(_MOE_GROUPED, native_options=_UNGROUPED),
    "ep2": Scenario(replace(_MOE, ep=2), ranks=2),
    "ep2_grouped": Scenario(replace(_MOE_GROUPED, ep=2), ranks=2, native_options=_UNGROUPED),
    "op_fuser_mlp": Scenario(Options(op_fuser=True, swiglu=True)),
    "tp2_op_fuser": Scenario(replace(_TP2_SP, op_fuser=True, swiglu=True), ranks=2),
    "cp2": Scenario(Options(cp=2), ranks=2, native_options={"cp": 1}),
}
"""Scenarios that this version may refuse: experts, context parallelism, fusible operations."""

SCENARIOS = DENSE | OTHERS
