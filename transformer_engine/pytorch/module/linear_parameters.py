# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights and biases of the linear modules: splitting, registration, argument checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments import tensor_parallel_size
from ..cpp_extensions import steps
from ..distributed import set_tensor_model_parallel_attributes
from .arguments import check_callable, check_flags, check_name, check_size, parameter_dtype
from .base import TransformerEngineBaseModule
from .parameter_init import InitMethod, default_init, zeros_init
from .sharding import divide, native_sharding, weight_shard
from .userbuffers import OVERLAP, tell_once

GEMM_PARALLEL_MODES = ("row", "column", None)
SYMMETRIC_AR_TYPES = (None, "nccl", "multimem_all_reduce", "two_shot", "one_shot")


def split_rows(
    owner: str,
    parameters_split: Sequence[str] | Mapping[str, int] | None,
    rows: int,
    ranks: int = 1,
) -> dict[str, int]:
    """Name prefix -> this rank's rows of each weight slice; one nameless slice when not split.

    Parameters
    ----------
    rows : int
        Of all ranks that share them.
    ranks : int
        Each has an equal part of every slice.

    Raises
    ------
    RuntimeError
        For a slice whose rows ranks cannot share.
    ValueError
        For an empty split, or rows that do not sum to `rows`.
    TypeError
        For another kind of object.
    """
    if parameters_split is None:
        return {"": divide(owner, "out_features", rows, ranks)}
    split = _split_rows(owner, parameters_split, rows)
    for name, count in split.items():
        if count % ranks:
            raise RuntimeError(
                f"{owner}: parameters_split[{name.rstrip('_')!r}] has {count} rows; a multiple of "
                f"the {ranks} tensor-parallel ranks is required."
            )
    return {name: count // ranks for name, count in split.items()}


def _split_rows(
    owner: str, parameters_split: Sequence[str] | Mapping[str, int], rows: int
) -> dict[str, int]:
    """The same of all ranks.

    Raises
    ------
    ValueError
        For an empty split, or rows that do not sum to `rows`.
    TypeError
        For another kind of object.
    """
    if isinstance(parameters_split, str) or not isinstance(parameters_split, (Sequence, Mapping)):
        raise TypeError(
            f"{owner}: parameters_split is a {type(parameters_split).__name__}; a sequence of "
            "names or a dict of name -> rows is required."
        )
    if not parameters_split:
        raise ValueError(
            f"{owner}: parameters_split is empty; at least one name is required. Pass None for "
            "one unsplit weight."
        )
    for name in parameters_split:
        if not isinstance(name, str) or not name.rstrip("_") or "." in name:
            raise TypeError(
                f"{owner}: parameters_split has the name {name!r}; non-empty strings without dots "
                "are required. Use names such as 'query'."
            )
    names = [name.rstrip("_") + "_" for name in parameters_split]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{owner}: parameters_split has the name '{name[:-1]}' twice (trailing "
                "underscores do not count); names must differ."
            )
    if isinstance(parameters_split, Mapping):
        split = {
            name.rstrip("_") + "_": check_size(owner, f"parameters_split[{name!r}]", count)
            for name, count in parameters_split.items()
        }
        if sum(split.values()) != rows:
            raise ValueError(
                f"{owner}: parameters_split has {sum(split.values())} rows together; "
                f"out_features={rows} is required."
            )
        return split
    if rows % len(names) != 0:
        raise ValueError(
            f"{owner}: parameters_split has {len(names)} names; out_features={rows} must be "
            "divisible by that. Pass a dict of name -> rows for unequal slices."
        )
    return dict.fromkeys(names, rows // len(names))


@dataclass(frozen=True)
class LinearOptions:
    """Constructor arguments that every linear module takes over as attributes."""

    parallel_mode: str | None
    tp_group: Any
    tp_size: int
    sequence_parallel: bool
    symmetric_ar_type: str | None
    fuse_wgrad_accumulation: bool
    delay_wgrad_compute: bool
    ub_flags: Mapping[str, bool]
    ub_name: str | None

    def apply_to(self, module: TransformerEngineBaseModule) -> None:
        """Set the attributes; raise for values that are wrong."""
        owner = type(module).__name__
        self._check(owner)
        module.tp_group = self.tp_group
        module.tp_size = tensor_parallel_size(owner, self.tp_size, self.tp_group)
        module.sequence_parallel = self.sequence_parallel and module.tp_size > 1
        module.parallel_mode = self.parallel_mode
        module.symmetric_ar_type = self.symmetric_ar_type
        module.fuse_wgrad_accumulation = self.fuse_wgrad_accumulation
        module.delay_wgrad_compute = self.delay_wgrad_compute
        module.ub_name = self.ub_name
        for name, value in self.ub_flags.items():
            setattr(module, name, value)
        wanted = [name for name, value in self.ub_flags.items() if value]
        if wanted and self.sequence_parallel:
            what = f"{', '.join(wanted)} ask for userbuffers"
            tell_once(owner, what, OVERLAP, stacklevel=3)
        if self.symmetric_ar_type not in (None, "nccl") and module.tp_size > 1:
            what = f"symmetric_ar_type={self.symmetric_ar_type!r} asks for symmetric memory"
            tell_once(owner, what, "the ordinary all-reduce runs", stacklevel=3)

    def _check(self, owner: str) -> None:
        check_size(owner, "tp_size", self.tp_size, minimum=1)
        check_flags(
            owner,
            sequence_parallel=self.sequence_parallel,
            fuse_wgrad_accumulation=self.fuse_wgrad_accumulation,
            delay_wgrad_compute=self.delay_wgrad_compute,
            **self.ub_flags,
        )
        check_name(owner, "ub_name", self.ub_name)
        if self.delay_wgrad_compute and self.ub_flags.get("ub_bulk_wgrad"):
            raise ValueError(
                f"{owner}: delay_wgrad_compute and ub_bulk_wgrad are both True; the second "
                "overlaps communication with a weight gradient that the first leaves for later. "
                "Pass one of them."
            )
        if self.parallel_mode not in GEMM_PARALLEL_MODES:
            raise ValueError(
                f"{owner}: parallel_mode is {self.parallel_mode!r}; 'row', 'column' or None is "
                "required."
            )
        if self.symmetric_ar_type not in SYMMETRIC_AR_TYPES:
            raise ValueError(
                f"{owner}: symmetric_ar_type is {self.symmetric_ar_type!r}; one of "
                f"{SYMMETRIC_AR_TYPES} is required."
            )


@dataclass(frozen=True)
class WeightShape:
    """One weight of a linear module, with its bias: [out, in] and [out], as this rank holds it."""

    out_features: int
    in_features: int
    has_bias: bool = True
    weight_name: str = "weight"
    bias_name: str = "bias"
    fp8_meta_index: int = 1
    split: Mapping[str, int] | None = None  # name prefix -> rows
    parallel_mode: str | None = None
    blocks: int = 1  # of rows that are split over ranks each on their own

    @property
    def partition_dim(self) -> int:
        """Of the weight: 1 for row-parallel layers."""
        return 1 if self.parallel_mode == "row" else 0


@dataclass(frozen=True)
class Placement:
    """Where parameters are made and how they are drawn."""

    device: torch.device
    dtype: torch.dtype
    init_method: InitMethod | None = None
    get_rng_state_tracker: Any = None
    rng_tracker_name: str | None = None

    @classmethod
    def checked(
        cls, owner: str, device: torch.device, params_dtype: Any, **drawing: Any
    ) -> Placement:
        """From constructor arguments, by their names; TypeError for those of another kind."""
        for name, value in drawing.items():
            check = check_name if name == "rng_tracker_name" else check_callable
            check(owner, name, value)
        return cls(device, parameter_dtype(owner, "params_dtype", params_dtype), **drawing)


def register_linear_parameters(
    module: TransformerEngineBaseModule, shape: WeightShape, placement: Placement
) -> tuple[list[str], list[str]]:
    """Register a linear layer's weights and biases; slices share one contiguous buffer.

    Returns
    -------
    (weight names, bias names)
    """
    split = shape.split or {"": shape.out_features}
    if len(split) > 1 and module.primary_weights_in_fp8:
        raise RuntimeError(
            f"{type(module).__name__}: parameters_split has {len(split)} slices inside "
            "quantized_model_init; one slice is required. Build with one weight, or quantize the "
            "whole weight."
        )
    weight_buffer = torch.empty(
        shape.out_features, shape.in_features, device=placement.device, dtype=placement.dtype
    )
    bias_buffer = torch.empty(
        shape.out_features if shape.has_bias else 0,
        device=placement.device,
        dtype=placement.dtype,
    )
    weight_names: list[str] = []
    bias_names: list[str] = []
    row = 0
    for prefix, rows in split.items():
        weight = torch.nn.Parameter(weight_buffer[row : row + rows])
        set_tensor_model_parallel_attributes(
            tensor=weight, is_parallel=True, dim=shape.partition_dim, stride=1
        )
        weight_names.append(prefix + shape.weight_name)
        module.register_parameter(
            weight_names[-1],
            weight,
            init_fn=placement.init_method or default_init,
            get_rng_state_tracker=placement.get_rng_state_tracker,
            rng_tracker_name=placement.rng_tracker_name,
            fp8_meta_index=shape.fp8_meta_index,
            shard=weight_shard(module, shape.partition_dim, shape.blocks, shape.parallel_mode),
        )
        if shape.has_bias:
            bias_names.append(prefix + shape.bias_name)
            bias = torch.nn.Parameter(bias_buffer[row : row + rows])
            module.register_parameter(bias_names[-1], bias, init_fn=zeros_init)
        else:
            # An attribute, not a parameter: no key in the state dict.
            empty = torch.empty(0, device=placement.device, dtype=placement.dtype)
            object.__setattr__(module, prefix + shape.bias_name, empty)
        row += rows
    return weight_names, bias_names


def mark_bias(module: TransformerEngineBaseModule, names: list[str], parallel_mode: Any) -> None:
    """Attributes that trainers read from biases."""
    for name in names:
        bias = getattr(module, name)
        if parallel_mode == "row":
            bias.sequence_parallel = module.sequence_parallel
        elif parallel_mode == "column":
            set_tensor_model_parallel_attributes(tensor=bias, is_parallel=True, dim=0, stride=1)


def linear_spec(
    module: Any,
    weight_names: list[str],
    bias_names: list[str],
    *,
    parallel_mode: str | None,
    **shape: Any,
) -> Any:
    """The native description of one linear layer of `module`."""
    return steps.LinearSpec(
        label=f"{type(module).__name__}.forward",
        weight_names=weight_names,
        bias_names=bias_names,
        fuse_wgrad_accumulation=bool(module.fuse_wgrad_accumulation),
        delay_wgrad_compute=bool(module.delay_wgrad_compute),
        sharding=native_sharding(module, parallel_mode),
        **shape,
    )


def mark_delayed(module: TransformerEngineBaseModule, names: list[str]) -> None:
    """Tell trainers that these gradients arrive after backward."""
    for name in names:
        getattr(module, name).skip_backward_post_hook = True
