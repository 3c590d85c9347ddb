# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Normalization followed by a linear layer, in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..cpp_extensions import steps
from . import compiled, composed
from .arguments import check_eps, check_flags, check_size
from .base import TransformerEngineBaseModule, resolve_device
from .linear_parameters import (
    LinearOptions,
    Placement,
    WeightShape,
    linear_spec,
    mark_bias,
    mark_delayed,
    register_linear_parameters,
    split_rows,
)
from .norm_parameters import check_normalization, norm_spec, register_norm_parameters
from .parameter_init import InitMethod
from .sharding import divide, output_shape, refuse_composed

__all__ = ["LayerNormLinear"]


class LayerNormLinear(TransformerEngineBaseModule):
    """y = norm(x) W^T + b

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dimension of input and output.
    eps : float, default 1e-5
        Added to the variance.
    normalization : {"LayerNorm", "RMSNorm"}
    return_layernorm_output : bool, default False
        Also return the norm's output (in the activations' dtype).
    return_layernorm_output_gathered : bool, default False
        With sequence parallelism, return it with the rows of all ranks.
    zero_centered_gamma : bool, default False
        The norm's weight is stored minus one and starts at 0.
    parallel_mode : {None, "column"}
        "row" is a NotImplementedError: the norm needs whole rows.
    sequence_parallel, fuse_wgrad_accumulation, tp_group, tp_size, get_rng_state_tracker, \
    init_method, bias, return_bias, params_dtype, parameters_split, device, ub_overlap_ag, \
    ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_wgrad, ub_bulk_dgrad, ub_name, \
    delay_wgrad_compute, symmetric_ar_type, name
        As in `Linear`.

    Raises
    ------
    ValueError, TypeError
        For arguments outside the above.
    NotImplementedError
        For ``parallel_mode="row"``.
    """

    _step_attributes = frozenset(
        {
            "in_features",
            "out_features",
            "eps",
            "normalization",
            "zero_centered_gamma",
            "use_bias",
            "return_bias",
            "return_layernorm_output",
            "fuse_wgrad_accumulation",
            "delay_wgrad_compute",
            "parallel_mode",
            "sequence_parallel",
            "tp_group",
            "tp_size",
            "return_layernorm_output_gathered",
        }
    )

    def __init__(  # noqa: PLR0913  # public signature
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        options = LinearOptions(
            parallel_mode=parallel_mode,
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
                "ub_bulk_wgrad": ub_bulk_wgrad,
                "ub_bulk_dgrad": ub_bulk_dgrad,
            },
            ub_name=ub_name,
        )
        options.apply_to(self)
        check_normalization("LayerNormLinear", normalization)
        if parallel_mode == "row":
            raise NotImplementedError(
                "LayerNormLinear: parallel_mode is 'row'; the norm needs whole rows, so None or "
                "'column' is required. Use a norm followed by Linear."
            )
        check_eps("LayerNormLinear", eps)
        check_flags(
            "LayerNormLinear",
            bias=bias,
            return_bias=return_bias,
            return_layernorm_output=return_layernorm_output,
            return_layernorm_output_gathered=return_layernorm_output_gathered,
            zero_centered_gamma=zero_centered_gamma,
        )
        self.in_features = in_features = check_size("LayerNormLinear", "in_features", in_features)
        out_features = check_size("LayerNormLinear", "out_features", out_features)
        ranks = self.tp_size if parallel_mode == "column" else 1
        rows = split_rows("LayerNormLinear", parameters_split, out_features, ranks)
        out_features = divide("LayerNormLinear", "out_features", out_features, ranks)
        self.out_features = out_features
        self.eps = eps
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.use_bias = bias
        self.return_bias = return_bias
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        placement = Placement.checked(
            "LayerNormLinear",
            resolve_device(device, "LayerNormLinear"),
            params_dtype,
            init_method=init_method,
            get_rng_state_tracker=get_rng_state_tracker,
        )
        register_norm_parameters(self, in_features, placement.device, placement.dtype)
        shape = WeightShape(
            out_features=out_features,
            in_features=in_features,
            parallel_mode=parallel_mode,
            has_bias=bias,
            split=rows,
        )
        self.weight_names, self.bias_names = register_linear_parameters(self, shape, placement)
        self.reset_parameters(defer_init=placement.device.type == "meta")
        mark_bias(self, self.bias_names, parallel_mode)
        if delay_wgrad_compute:
            mark_delayed(self, self.weight_names)

    def _used_biases(self) -> list[str]:
        return self.bias_names if self.use_bias else []

    def _build_step(self) -> Any:
        return steps.LinearStep(
            name="LayerNormLinear.forward",
            linear=linear_spec(
                self,
                self.weight_names,
                self._used_biases(),
                parallel_mode=self.parallel_mode,
                in_features=self.in_features,
                out_features=self.out_features,
            ),
            norm=norm_spec(self, self.in_features),
            return_bias=bool(self.return_bias),
            return_layernorm_output=bool(self.return_layernorm_output),
            return_layernorm_output_gathered=bool(self.return_layernorm_output_gathered),
        )

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Apply norm and linear layer; the arguments are those of `Linear.forward`.

        Returns
        -------
        torch.Tensor ``[..., out_features]``, or a tuple of it followed by the bias
        (``return_bias``; an empty tensor without bias) and the norm's output
        ``[..., in_features]`` (``return_layernorm_output``).
        """
        if torch.compiler.is_compiling():
            return self._compiled_forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        return self._run_step(inp, is_first_microbatch, fp8_output, fp8_grad)

    def _compiled_forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None, fp8_output: bool, fp8_grad: bool
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """`forward` while torch.compile traces; see `compiled`."""
        if compiled.is_composed():
            return self._composed_forward(inp)
        compiled.refuse_quantized_results(self, fp8_output=fp8_output, fp8_grad=fp8_grad)
        compiled.refuse_gathered_norm_output(self)
        biases = self._used_biases()
        names = composed.norm_names(self) + self.weight_names
        output, normalized = compiled.run(
            self,
            inp,
            names + ([] if self.return_bias else biases),
            out_shape=output_shape(self, self.parallel_mode, inp, self.out_features),
            is_first_microbatch=is_first_microbatch,
            with_layernorm_output=self.return_layernorm_output,
        )
        bias = composed.stacked_bias(self, biases, self.out_features)
        return composed.flagged(
            output,
            (self.return_bias, output.new_empty(0) if bias is None else bias),
            (self.return_layernorm_output, normalized),
        )

    def _composed_forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """`forward` outside quantized regions, of torch's operators; see `composed`."""
        del is_first_microbatch, fp8_output, fp8_grad  # about quantization
        refuse_composed(self, self.parallel_mode)
        normalized = composed.module_norm(self, inp)
        output, bias = composed.linear(
            self, normalized, self.weight_names, self._used_biases(), not self.return_bias
        )
        if bias is None:
            bias = output.new_empty(0)
        return composed.flagged(
            output, (self.return_bias, bias), (self.return_layernorm_output, normalized)
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.use_bias}, normalization={self.normalization}"
        )


steps.register_native_forward(LayerNormLinear.forward)
