# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..cpp_extensions import steps
from . import compiled, composed
from .arguments import check_flags, check_size
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
from .parameter_init import InitMethod
from .sharding import divide, output_shape, refuse_composed

__all__ = ["Linear"]


class Linear(TransformerEngineBaseModule):
    """y = x W^T + b

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dimension of input and output.
    sequence_parallel : bool, default False
        Effective only with more than one tensor-parallel rank.
    fuse_wgrad_accumulation : bool, default False
        Accumulate the weight gradient into ``weight.main_grad`` (its dtype is the sum's) instead
        of returning it to autograd.
    tp_group : torch.distributed.ProcessGroup, optional
        Of the ranks that share the layer; may be given later, see `set_tensor_parallel_group`.
    tp_size : int, default 1
        Their number, where `tp_group` is None.
    get_rng_state_tracker : callable, optional
        Returns the RNG tracker under which weights are drawn.
    rng_tracker_name : str, optional
        State of that tracker to use.
    init_method : callable, optional
        Fills the weight in place; N(0, 0.023) when None. Biases start at 0.
    bias : bool, default True
    return_bias : bool, default False
        Return ``(output, bias)`` and do not add the bias; None without bias.
    params_dtype : torch.dtype, optional
        torch.float32, bfloat16 or float16; torch's default dtype when None.
    parallel_mode : {None, "row", "column"}
        "column": each rank has ``out_features / tp_size`` rows of the weight; "row": ``in_features
        / tp_size`` columns, and the output is summed over ranks. With `sequence_parallel` the
        input ("column") or the output ("row") is split along its first dimension.
    parameters_split : sequence of str or dict of str to int, optional
        Register the weight (and bias) as slices ``<name>_weight`` of equal, or the given, rows.
    device : torch.device or str, default "cuda"
        "cuda" means CUDA when available, else the CPU; see `resolve_device`.
    ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad, ub_bulk_wgrad, ub_name
        Accepted. Collectives run asynchronously where a product hides them.
    delay_wgrad_compute : bool, default False
        Leave weight gradients to `backward_dw`.
    symmetric_ar_type : str, optional
        Kind of all-reduce on GPUs with symmetric memory; the ordinary one runs, with a warning.
    save_original_input : bool, default False
        Save the input in high precision for backward and quantize it again there. Not with
        delayed scaling (ValueError).
    name : str, optional

    Raises
    ------
    ValueError, TypeError
        For arguments outside the above.
    """

    _step_attributes = frozenset(
        {
            "in_features",
            "out_features",
            "use_bias",
            "return_bias",
            "fuse_wgrad_accumulation",
            "delay_wgrad_compute",
            "save_original_input",
            "parallel_mode",
            "sequence_parallel",
            "tp_group",
            "tp_size",
        }
    )

    def __init__(  # noqa: PLR0913  # public signature
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Sequence[str] | Mapping[str, int] | None = None,
        device: torch.device | str = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
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
                "ub_bulk_dgrad": ub_bulk_dgrad,
                "ub_bulk_wgrad": ub_bulk_wgrad,
            },
            ub_name=ub_name,
        )
        options.apply_to(self)
        check_flags(
            "Linear", bias=bias, return_bias=return_bias, save_original_input=save_original_input
        )
        in_features = check_size("Linear", "in_features", in_features)
        out_features = check_size("Linear", "out_features", out_features)
        ranks = self.tp_size
        rows = split_rows(
            "Linear", parameters_split, out_features, ranks if parallel_mode == "column" else 1
        )
        if parallel_mode == "column":
            out_features = divide("Linear", "out_features", out_features, ranks)
        elif parallel_mode == "row":
            in_features = divide("Linear", "in_features", in_features, ranks)
        self.in_features, self.out_features = in_features, out_features
        self.use_bias = bias
        self.return_bias = return_bias
        self.save_original_input = save_original_input
        device = resolve_device(device, "Linear")
        shape = WeightShape(
            out_features=out_features,
            in_features=in_features,
            parallel_mode=parallel_mode,
            has_bias=bias,
            split=rows,
        )
        placement = Placement.checked(
            "Linear",
            device,
            params_dtype,
            init_method=init_method,
            get_rng_state_tracker=get_rng_state_tracker,
            rng_tracker_name=rng_tracker_name,
        )
        self.weight_names, self.bias_names = register_linear_parameters(self, shape, placement)
        self.reset_parameters(defer_init=device.type == "meta")
        mark_bias(self, self.bias_names, parallel_mode)
        if delay_wgrad_compute:
            mark_delayed(self, self.weight_names)

    def _used_biases(self) -> list[str]:
        return self.bias_names if self.use_bias else []

    def _build_step(self) -> Any:
        return steps.LinearStep(
            name="Linear.forward",
            linear=linear_spec(
                self,
                self.weight_names,
                self._used_biases(),
                parallel_mode=self.parallel_mode,
                in_features=self.in_features,
                out_features=self.out_features,
            ),
            return_bias=bool(self.return_bias),
            save_original_input=bool(self.save_original_input),
        )

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """Apply the layer.

        Parameters
        ----------
        inp : torch.Tensor
            ``[..., in_features]``, FP32, BF16 or FP16 and of the parameters' dtype outside
            ``torch.autocast``; or a quantized tensor.
        is_first_microbatch : bool, optional
            True quantizes the weight and keeps the result (and overwrites ``main_grad``), False
            uses the kept one unless the weight was written since, None keeps nothing. torch does
            not count writes through ``weight.data``, a NumPy alias or ``untyped_storage()``, nor
            steps of its optimizers with ``fused=True``: pass True in the first call after one.
        fp8_output, fp8_grad : bool, default False
            Inside a quantized region, return a quantized output, or pass a quantized gradient on.

        Returns
        -------
        torch.Tensor ``[..., out_features]``, or ``(output, bias)`` with ``return_bias``. With
        sequence parallelism the first dimension is ``tp_size`` times as large ("column"), or a
        ``tp_size``-th ("row").

        Raises
        ------
        ValueError
            For a wrong last dimension.
        TypeError
            For a dtype that does not fit the parameters.
        """
        if torch.compiler.is_compiling():
            return self._compiled_forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        return self._run_step(inp, is_first_microbatch, fp8_output, fp8_grad)

    def _compiled_forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None, fp8_output: bool, fp8_grad: bool
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` while torch.compile traces; see `compiled`."""
        if compiled.is_composed():
            return self._composed_forward(inp)
        compiled.refuse_quantized_results(self, fp8_output=fp8_output, fp8_grad=fp8_grad)
        biases = self._used_biases()
        output, _ = compiled.run(
            self,
            inp,
            self.weight_names + ([] if self.return_bias else biases),
            out_shape=output_shape(self, self.parallel_mode, inp, self.out_features),
            is_first_microbatch=is_first_microbatch,
        )
        if not self.return_bias:
            return output
        return output, composed.stacked_bias(self, biases, self.out_features)

    def _composed_forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` outside quantized regions, of torch's operators; see `composed`."""
        del is_first_microbatch, fp8_output, fp8_grad  # about quantization
        refuse_composed(self, self.parallel_mode)
        output, bias = composed.linear(
            self, inp, self.weight_names, self._used_biases(), not self.return_bias
        )
        return composed.flagged(output, (self.return_bias, bias))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.use_bias}"
        )


steps.register_native_forward(Linear.forward)
