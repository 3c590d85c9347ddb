# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Normalization and the two linear layers of a transformer's MLP, in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..cpp_extensions import steps
from . import compiled, composed
from .arguments import check_callable, check_eps, check_flags, check_size
from .base import TransformerEngineBaseModule, resolve_device
from .linear_parameters import (
    LinearOptions,
    Placement,
    WeightShape,
    linear_spec,
    mark_bias,
    mark_delayed,
    register_linear_parameters,
)
from .norm_parameters import check_normalization, norm_spec, register_norm_parameters
from .parameter_init import InitMethod
from .sharding import divide, refuse_composed

__all__ = ["LayerNormMLP"]

# Native activation numbers (transformer_engine/activation.h).
ACTIVATIONS = {
    "gelu": 0,
    "qgelu": 1,
    "relu": 2,
    "srelu": 3,
    "silu": 4,
    "glu": 5,
    "geglu": 6,
    "qgeglu": 7,
    "reglu": 8,
    "sreglu": 9,
    "swiglu": 10,
    "clamped_swiglu": 11,
}
GATED_ACTIVATIONS = frozenset(name for name, number in ACTIVATIONS.items() if number >= 5)
ACTIVATION_PARAMS = {"clamped_swiglu": ("limit", "alpha", "glu_linear_offset")}


class LayerNormMLP(TransformerEngineBaseModule):
    """y = act(norm(x) W1^T + b1) W2^T + b2

    Parameters
    ----------
    hidden_size : int
        Size of the last dimension of input and output.
    ffn_hidden_size : int
        Width between the two layers.
    eps : float, default 1e-5
        Added to the variance.
    activation : str, default "gelu"
        gelu, qgelu, relu, srelu, silu, or a gated one: glu, geglu, qgeglu, reglu, sreglu,
        swiglu, clamped_swiglu. Gated ones double the rows of W1; the activation acts on the first
        half of its output.
    activation_params : dict, optional
        For clamped_swiglu: ``limit`` (7.0), ``alpha`` (1.702), ``glu_linear_offset`` (1.0).
        To change one later, assign a new dict to the attribute.
    init_method, output_layer_init_method : callable, optional
        Fill W1 and W2; N(0, 0.023) when None.
    return_bias : bool, default False
        Do not add b2; return it second (None without bias).
    return_layernorm_output : bool, default False
        Also return the norm's output, last.
    set_parallel_mode : bool, default False
        Make the first layer column-parallel and the second row-parallel.
    seq_length, micro_batch_size : int, optional
        Accepted; nothing here needs warming up.
    checkpoint : bool, default False
        Keep only the input for backward and compute norm, first layer and activation again.
    sequence_parallel, get_rng_state_tracker, tp_group, tp_size, bias, normalization, \
    fuse_wgrad_accumulation, params_dtype, return_layernorm_output_gathered, \
    zero_centered_gamma, device, ub_overlap_ag, name, ub_overlap_rs, ub_overlap_rs_dgrad, \
    ub_bulk_dgrad, ub_bulk_wgrad, delay_wgrad_compute, symmetric_ar_type
        As in `LayerNormLinear`.

    Raises
    ------
    ValueError
        For arguments outside the above.
    NotImplementedError
        For an unknown activation.
    """

    _step_attributes = frozenset(
        {
            "hidden_size",
            "size_per_partition",
            "eps",
            "normalization",
            "zero_centered_gamma",
            "activation",
            "activation_params",
            "use_bias",
            "return_bias",
            "return_layernorm_output",
            "fuse_wgrad_accumulation",
            "delay_wgrad_compute",
            "checkpoint",
            "set_parallel_mode",
            "sequence_parallel",
            "tp_group",
            "tp_size",
            "return_layernorm_output_gathered",
        }
    )
    num_gemms = 2
    _gemm_names = ("fc1", "fc2")

    def __init__(  # noqa: PLR0913  # public signature
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: InitMethod | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: dict[str, float] | None = None,
        output_layer_init_method: InitMethod | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        name: str | None = None,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(name)
        del seq_length, micro_batch_size
        check_flags("LayerNormMLP", set_parallel_mode=set_parallel_mode)
        options = LinearOptions(
            parallel_mode="column" if set_parallel_mode else None,
            tp_group=tp_group,
            tp_size=tp_size,
            sequence_parallel=sequence_parallel,
            symmetric_ar_type=symmetric_ar_type,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            delay_wgrad_compute=delay_wgrad_compute,
            ub_flags={
                "ub_overlap_ag": ub_overlap_ag,
                "ub_overlap_rs": ub_overlap_rs,
                "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad,
                "ub_bulk_dgrad": ub_bulk_dgrad,
                "ub_bulk_wgrad": ub_bulk_wgrad,
            },
            ub_name=None,
        )
        options.apply_to(self)
        check_normalization("LayerNormMLP", normalization)
        check_activation(activation, activation_params)
        check_eps("LayerNormMLP", eps)
        check_flags(
            "LayerNormMLP",
            bias=bias,
            return_bias=return_bias,
            return_layernorm_output=return_layernorm_output,
            return_layernorm_output_gathered=return_layernorm_output_gathered,
            zero_centered_gamma=zero_centered_gamma,
            checkpoint=checkpoint,
        )
        check_callable("LayerNormMLP", "output_layer_init_method", output_layer_init_method)
        self.hidden_size = hidden_size = check_size("LayerNormMLP", "hidden_size", hidden_size)
        ffn_hidden_size = check_size("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size)
        ffn_hidden_size = divide("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size, self.tp_size)
        self.size_per_partition = ffn_hidden_size
        self.eps = eps
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.activation = activation
        self.activation_params = dict(activation_params or {})
        self.use_bias = bias
        self.return_bias = return_bias
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        self.set_parallel_mode = set_parallel_mode
        self.checkpoint = checkpoint
        placement = Placement.checked(
            "LayerNormMLP",
            resolve_device(device, "LayerNormMLP"),
            params_dtype,
            init_method=init_method,
            get_rng_state_tracker=get_rng_state_tracker,
        )
        register_norm_parameters(self, hidden_size, placement.device, placement.dtype)
        fc1 = WeightShape(
            out_features=self._fc1_rows(),
            in_features=hidden_size,
            parallel_mode=self._mode("column"),
            blocks=2 if activation in GATED_ACTIVATIONS else 1,
            weight_name="fc1_weight",
            has_bias=bias,
            bias_name="fc1_bias",
            fp8_meta_index=1,
        )
        fc2 = WeightShape(
            out_features=hidden_size,
            in_features=ffn_hidden_size,
            parallel_mode="row",
            weight_name="fc2_weight",
            has_bias=bias,
            bias_name="fc2_bias",
            fp8_meta_index=4,
        )
        register_linear_parameters(self, fc1, placement)
        register_linear_parameters(
            self, fc2, replace(placement, init_method=output_layer_init_method)
        )
        self.reset_parameters(defer_init=placement.device.type == "meta")
        if bias and set_parallel_mode:
            mark_bias(self, ["fc1_bias"], "column")
            mark_bias(self, ["fc2_bias"], "row")
        if delay_wgrad_compute:
            mark_delayed(self, ["fc1_weight", "fc2_weight"])

    def _mode(self, parallel_mode: str) -> str | None:
        return parallel_mode if self.set_parallel_mode else None

    def _fc1_rows(self) -> int:
        return self.size_per_partition * (2 if self.activation in GATED_ACTIVATIONS else 1)

    def _build_step(self) -> Any:
        return steps.NormMLPStep(
            name="LayerNormMLP.forward",
            norm=norm_spec(self, self.hidden_size),
            fc1=linear_spec(
                self,
                ["fc1_weight"],
                ["fc1_bias"] if self.use_bias else [],
                parallel_mode=self._mode("column"),
                in_features=self.hidden_size,
                out_features=self._fc1_rows(),
                gemm=0,
            ),
            fc2=linear_spec(
                self,
                ["fc2_weight"],
                ["fc2_bias"] if self.use_bias else [],
                parallel_mode=self._mode("row"),
                in_features=self.size_per_partition,
                out_features=self.hidden_size,
                gemm=1,
            ),
            activation=ACTIVATIONS[self.activation],
            activation_params=self.activation_params,
            return_bias=bool(self.return_bias),
            return_layernorm_output=bool(self.return_layernorm_output),
            return_layernorm_output_gathered=bool(self.return_layernorm_output_gathered),
            recomputes=bool(self.checkpoint),
        )

    def forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None = None
    ) -> torch.Tensor | tuple[torch.Tensor | None, ...]:
        """Apply the MLP.

        Parameters
        ----------
        inp : torch.Tensor
            ``[..., hidden_size]``, FP32, BF16 or FP16 and of the parameters' dtype outside
            ``torch.autocast``.
        is_first_microbatch : bool, optional
            As in `Linear.forward`.

        Returns
        -------
        torch.Tensor of the input's shape, or a tuple of it followed by ``fc2_bias``
        (``return_bias``; None without bias) and the norm's output (``return_layernorm_output``).
        """
        if torch.compiler.is_compiling():
            return self._compiled_forward(inp, is_first_microbatch)
        return self._run_step(inp, is_first_microbatch)

    def _compiled_forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None
    ) -> torch.Tensor | tuple[torch.Tensor | None, ...]:
        """`forward` while torch.compile traces; see `compiled`."""
        if compiled.is_composed():
            return self._composed_forward(inp)
        compiled.refuse_gathered_norm_output(self)
        names = [*composed.norm_names(self), "fc1_weight", "fc2_weight"]
        if self.use_bias:
            names += ["fc1_bias"] if self.return_bias else ["fc1_bias", "fc2_bias"]
        output, normalized = compiled.run(
            self,
            inp,
            names,
            out_shape=inp.shape,
            is_first_microbatch=is_first_microbatch,
            with_layernorm_output=self.return_layernorm_output,
        )
        bias = composed.stacked_bias(self, ["fc2_bias"] if self.use_bias else [], self.hidden_size)
        return composed.flagged(
            output,
            (self.return_bias, bias),
            (self.return_layernorm_output, normalized),
        )

    def _composed_forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None = None
    ) -> torch.Tensor | tuple[torch.Tensor | None, ...]:
        """`forward` outside quantized regions, of torch's operators; see `composed`."""
        del is_first_microbatch  # about quantization
        refuse_composed(self, self._mode("column"))
        normalized = composed.module_norm(self, inp)
        hidden, _ = composed.linear(
            self, normalized, ["fc1_weight"], ["fc1_bias"] if self.use_bias else [], True
        )
        hidden = composed.activation(self.activation, hidden, self.activation_params)
        output, bias = composed.linear(
            self,
            hidden,
            ["fc2_weight"],
            ["fc2_bias"] if self.use_bias else [],
            not self.return_bias,
        )
        return composed.flagged(
            output, (self.return_bias, bias), (self.return_layernorm_output, normalized)
        )

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, ffn_hidden_size={self.size_per_partition}, "
            f"activation={self.activation}, normalization={self.normalization}, "
            f"bias={self.use_bias}"
        )


def check_activation(activation: str, params: dict[str, float] | None) -> None:
    """Raise for an activation or a parameter of it that does not exist."""
    if not isinstance(activation, str):
        raise TypeError(
            f"LayerNormMLP: activation is {activation!r} of type {type(activation).__name__}; a "
            f"str is required. Pass one of {', '.join(ACTIVATIONS)}."
        )
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(
            f"LayerNormMLP: activation_params is {params!r} of type {type(params).__name__}; a "
            "dict of name -> number is required. Pass None for the defaults."
        )
    for key, value in (params or {}).items():
        if not isinstance(value, (int, float)):
            raise TypeError(
                f"LayerNormMLP: activation_params[{key!r}] is {value!r} of type "
                f"{type(value).__name__}; a number is required. Leave it out for the default."
            )
    if activation not in ACTIVATIONS:
        raise NotImplementedError(
            f"LayerNormMLP: activation is {activation!r}; one of {', '.join(ACTIVATIONS)} is "
            "required."
        )
    allowed = ACTIVATION_PARAMS.get(activation, ())
    unknown = [key for key in params or {} if key not in allowed]
    if unknown:
        raise ValueError(
            f"LayerNormMLP: activation_params has {unknown}; {activation} takes "
            f"{list(allowed) or 'none'}."
        )


steps.register_native_forward(LayerNormMLP.forward)
