# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a run: a tiny GPT under Megatron-core's own DDP, optimizer and schedule.

Import after `cuda_to_cpu_shim.install()`.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import megatron.core.transformer.moe.moe_utils as moe_utils
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.module import Float16Module

from . import native_layers
from .scenarios import BATCH, FP8_RECIPES, MICROBATCHES, SEQUENCE, STEPS, VOCABULARY, Options

if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 leaves it undefined without TE's GEMM
    moe_utils.te_general_gemm = None

StepLog = dict[str, Any]
""""loss": one per microbatch (last pipeline stage only); "grad_norm": before clipping."""


def train(
    spec: str, options: Options, save_to: str | None = None, load_from: str | None = None
) -> list[StepLog]:
    """Train for STEPS steps in a process group that exists.

    Parameters
    ----------
    spec : str
        "te" or "native": of which layers the model is built.
    options : Options
    save_to : str, optional
        Folder for a distributed checkpoint of model and optimizer, made before the last step.
    load_from : str, optional
        Folder with such a checkpoint, of any number of ranks: take only the last step, from there.

    Returns
    -------
    list of StepLog
        As this rank sees it.
    """
    if options.grad_accum_fusion:
        native_layers.accumulate_weight_gradients()
    if spec == "native":
        native_layers.use_plain_norms()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        context_parallel_size=options.cp,
        expert_model_parallel_size=options.ep,
    )
    torch.manual_seed(7)
    model_parallel_cuda_manual_seed(7, te_rng_tracker=options.te_rng_tracker)
    trainer = _Trainer(spec, options)
    last = STEPS - 1
    logs = []
    if load_from is None:
        logs = [trainer.step(i) for i in range(last)]
    else:
        trainer.load(load_from)
    if save_to is not None:
        trainer.save(save_to)
    if options.checkpoint:
        trainer.round_trip()
    return [*logs, trainer.step(last)]


def _model_config(options: Options) -> TransformerConfig:
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    settings: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        # Large enough that the loss feels attention and MLP, not just the embedding.
        "init_method_std": 0.2,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": options.bf16,
        "use_cpu_initialization": options.cpu_init,
        "tensor_model_parallel_size": options.tp,
        "pipeline_model_parallel_size": options.pp,
        "context_parallel_size": options.cp,
        "expert_model_parallel_size": options.ep,
        "sequence_parallel": options.sequence_parallel,
        "hidden_dropout": options.dropout,
        "attention_dropout": options.dropout,
        "gradient_accumulation_fusion": options.grad_accum_fusion,
        "finalize_model_grads_func": finalize_model_grads,
        "layernorm_zero_centered_gamma": options.zero_centered,
        "apply_rope_fusion": options.rope_fusion,
        "use_te_rng_tracker": options.te_rng_tracker,
        "qk_layernorm": options.qk_layernorm,
        **_architecture(options),
        **_recompute(options),
    }
    if options.fp8:
        settings |= {
            "fp8": "hybrid",
            "fp8_recipe": FP8_RECIPES[options.fp8],
            "fp8_param": options.fp8_parameters,
        }
    if options.latent_attention:
        return MLATransformerConfig(multi_latent_attention=True, **settings)
    return TransformerConfig(**settings)


def _architecture(options: Options) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if options.swiglu:
        settings |= {
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "add_bias_linear": False,
            "normalization": "RMSNorm",
        }
    if options.query_groups:
        settings["num_query_groups"] = options.query_groups
    if options.window:
        settings["window_size"] = (options.window, 0)
    if options.experts:
        settings |= {
            "num_moe_experts": options.experts,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 96,
            "add_bias_linear": False,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "aux_loss",
            "moe_aux_loss_coeff": 1e-2,
            "moe_grouped_gemm": options.grouped_gemm,
        }
    if options.latent_attention:
        settings |= {
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_head_dim": 16,
            "qk_pos_emb_head_dim": 8,
            "v_head_dim": 16,
            "rope_type": "rope",
            "normalization": "RMSNorm",
            "add_bias_linear": False,
        }
    return settings


def _recompute(options: Options) -> dict[str, Any]:
    if options.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    modules = {"": [], "selective": ["core_attn"], "modules": ["core_attn", "mlp"]}
    if recomputed := modules[options.recompute]:
        return {"recompute_granularity": "selective", "recompute_modules": recomputed}
    return {}


def _optimizer_settings(options: Options) -> dict[str, Any]:
    if not options.precision_aware:
        return {}
    return {
        "use_precision_aware_optimizer": True,
        "main_params_dtype": torch.float32,
        "store_param_remainders": True,
        "exp_avg_dtype": torch.uint8,
        "exp_avg_sq_dtype": torch.bfloat16,
    }


def _layer_spec(spec: str, options: Options, config: TransformerConfig) -> Any:
    shared = {
        "num_experts": config.num_moe_experts,
        "qk_layernorm": options.qk_layernorm,
        "multi_latent_attention": options.latent_attention,
    }
    if spec == "te":
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            moe_grouped_gemm=options.grouped_gemm, use_te_op_fuser=options.op_fuser, **shared
        )
    return gpt_layer_specs.get_gpt_layer_local_spec(
        moe_grouped_gemm=False, normalization=config.normalization, **shared
    )


class _Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, spec: str, options: Options) -> None:
        self.spec, self.options = spec, options
        self.config = _model_config(options)
        self.net, self.optimizer = self._build()
        generator = torch.Generator().manual_seed(11)
        self.data = torch.randint(0, VOCABULARY, (STEPS, BATCH, SEQUENCE), generator=generator)
        self.positions = torch.arange(SEQUENCE)
        if options.cp > 1:  # each rank holds one early and one late chunk
            chunks = self.positions.chunk(2 * options.cp)
            rank = parallel_state.get_context_parallel_rank()
            self.positions = torch.cat([chunks[rank], chunks[2 * options.cp - 1 - rank]])

    def _build(self) -> tuple[torch.nn.Module, Any]:
        options, config = self.options, self.config
        net: torch.nn.Module = GPTModel(
            config=config,
            transformer_layer_spec=_layer_spec(self.spec, options, config),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            position_embedding_type="rope",
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        )
        if options.init_by_name:
            native_layers.draw_by_name(net, options)
        if config.bf16:
            net = Float16Module(config, net)
        has_fp8_parameters = bool(options.fp8) and options.fp8_parameters
        shared = {
            "use_distributed_optimizer": options.distributed_optimizer,
            # MXFP8 weights are gathered in high precision, in the place of gradients.
            "reuse_grad_buf_for_mxfp8_param_ag": has_fp8_parameters and options.fp8 == "mxfp8",
        }
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=options.overlap_grad_reduce,
            fp8_param_gather=has_fp8_parameters,
            **shared,
        )
        net = DistributedDataParallel(config, ddp_config, net)
        optimizer_config = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            bf16=config.bf16,
            params_dtype=config.params_dtype,
            clip_grad=1.0,
            fp8_recipe=config.fp8_recipe if config.fp8 else None,
            **shared,
            **_optimizer_settings(options),
        )
        return net, get_megatron_optimizer(optimizer_config, [net])

    def step(self, i: int) -> StepLog:
        """One optimizer step on batch `i`."""
        ids = self.data[i][:, self.positions]
        positions = self.positions.unsqueeze(0).repeat(BATCH, 1)
        mask = None  # TE layers make the causal mask themselves
        if self.spec == "native":
            mask = torch.ones(BATCH, 1, SEQUENCE, SEQUENCE).tril() < 0.5

        def loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            mean = losses.float().sum() / (BATCH * SEQUENCE)  # the schedule scales by the CP size
            reported = mean.detach().clone()
            torch.distributed.all_reduce(
                reported, group=parallel_state.get_context_parallel_group()
            )
            return mean, {"loss": reported}

        def forward(_: Any, model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            return model(ids, positions, mask, labels=ids), loss

        self.net.zero_grad_buffer()
        self.optimizer.zero_grad()
        results = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=None,
            model=[self.net],
            num_microbatches=MICROBATCHES,
            seq_length=SEQUENCE,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        _, norm, _ = self.optimizer.step()
        return {"loss": [r["loss"].item() for r in results], "grad_norm": float(norm)}

    def _state(self, is_loading: bool) -> dict[str, Any]:
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        model = self.net.module.sharded_state_dict(metadata={"dp_cp_group": group})
        # The copy: the optimizer's function may change what it is given.
        optimizer = self.optimizer.sharded_state_dict(dict(model), is_loading=is_loading)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder: str) -> None:
        """Write a distributed checkpoint of model and optimizer."""
        dist_checkpointing.save(self._state(is_loading=False), folder)

    def load(self, folder: str) -> None:
        """Read one, which other numbers of ranks may have written."""
        state = dist_checkpointing.load(self._state(is_loading=True), folder)
        self.net.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def round_trip(self) -> None:
        """Save, and load into a model and an optimizer of their own."""
        rank = torch.distributed.get_rank()
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        torch.distributed.broadcast_object_list(folder, 0)
        self.save(folder[0])
        before = self.net.module
        self.net, self.optimizer = self._build()
        self.load(folder[0])
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(folder[0])
        pairs = zip(before.named_parameters(), self.net.module.parameters(), strict=True)
        for (name, parameter), loaded in pairs:
            assert torch.equal(parameter, loaded), f"{name} came back different"
        assert set(before.state_dict()) == set(self.net.module.state_dict())
