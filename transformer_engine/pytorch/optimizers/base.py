# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers share: gradients, their flags, and the deprecated ``set_grad_none``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments import check_flag, check_tensor
from ..tensor import QuantizedTensor
from ..tensor.storage.write_tracking import count_write
from .multi_tensor_apply import local_tensor


def has_same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same flat array, element by element."""
    return (a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride()


def plain_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised plain tensor with the shape of a local one, and its layout if it has one."""
    if isinstance(tensor, QuantizedTensor):
        return torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    return torch.empty_like(tensor.detach(), dtype=dtype)


def count_writes_of(param: torch.Tensor) -> None:
    """Tell torch about a write to what a wrapper class holds; plain tensors were told natively."""
    if isinstance(param, QuantizedTensor) or local_tensor(param) is not param:
        count_write(param)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
CHUNK_SIZE = 65536  # first argument of functions on lists
Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # parameters and their gradients


@dataclass(slots=True)
class SavedState:
    """What a state dict holds for a parameter."""

    param: torch.Tensor
    where: str  # the parameter, for messages
    index: Any  # its key in the state dict
    values: dict[str, Any]  # those of the names that the optimizer makes itself


class FusedOptimizer(torch.optim.Optimizer):
    """Base of optimizers whose step is a few calls on lists of tensors.

    A subclass has `_check_group`, which raises for numbers of a group that are out of their range,
    and `_prepare_states`, which makes states of those that were saved.
    """

    _state_names: tuple[str, ...]  # of the states that the optimizer makes itself
    set_grad_none: bool | None
    use_decoupled_grad: bool = False
    _flags: dict[torch.device, torch.Tensor]

    def _set_up(self, set_grad_none: Any) -> None:
        self._flags = {}
        self.set_grad_none = None
        if set_grad_none is not None:
            who = type(self).__name__
            self.set_grad_none = check_flag(who, "set_grad_none", set_grad_none)
            warnings.warn(
                f"{who}: set_grad_none is deprecated; pass set_to_none to zero_grad instead.",
                DeprecationWarning,
                stacklevel=3,
            )

    def _check_group(self, who: str, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _prepare_states(
        self, who: str, saved: list[SavedState], state_dict: dict[str, Any]
    ) -> Callable[[], None]:
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of any optimizer.

        Parameters
        ----------
        param_group : dict
            ``params``, and numbers that differ from the defaults.

        Raises
        ------
        ValueError, TypeError
            For numbers out of their range, or no numbers; the group is not added.
        """
        if isinstance(param_group, dict):
            who = f"{type(self).__name__}: group {len(self.param_groups)}"
            self._check_group(who, {**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _name_of(self, group_index: int, param: torch.Tensor) -> str:
        """How messages call a parameter: by its place, and its name if the optimizer has it."""
        group = self.param_groups[group_index]
        position = next(i for i, one in enumerate(group["params"]) if one is param)
        names = group.get("param_names")
        called = f" ({names[position]})" if names else ""
        return f"parameter {position} of group {group_index}{called}"

    # --- loading --------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, all of it or, where that raises, nothing.

        Parameters
        ----------
        state_dict : dict
            From `state_dict`. A group without one of this optimizer's numbers keeps the present
            one.

        Raises
        ------
        ValueError, TypeError
            For groups of other sizes, numbers out of their range, and states that do not fit their
            parameters.
        """
        commits: list[Callable[[], None]] = []

        def prepare(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            prepared, commit = self._prepare_load(given)
            commits.append(commit)
            return prepared

        def finish(_: torch.optim.Optimizer) -> None:
            commits[0]()

        # The last of the hooks before and the first of those after: other hooks see what torch
        # promises them, and torch does not cast the states to the dtypes of parameters.
        before = self.register_load_state_dict_pre_hook(prepare)
        after = self.register_load_state_dict_post_hook(finish, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _prepare_load(self, given: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        """What is left to torch, and what is to follow it. Raises for all that cannot be loaded."""
        who = f"{type(self).__name__}.load_state_dict"
        states = {index: dict(state) for index, state in given["state"].items()}
        sizes = [len(group["params"]) for group in self.param_groups]
        received_sizes = [len(packed["params"]) for packed in given["param_groups"]]
        if received_sizes != sizes:
            raise ValueError(
                f"{who}: state_dict has groups of {received_sizes} parameters; groups of {sizes} "
                "are required. Load it into an optimizer with the groups that were saved."
            )
        groups, saved = [], []
        for i, packed in enumerate(given["param_groups"]):
            group = self.param_groups[i]
            present = {name: group[name] for name in self.defaults if name in group}
            whole = self._loaded_group(f"{who}: group {i}", {**present, **packed}, states, group)
            groups.append(whole)
            for index, param in zip(packed["params"], group["params"], strict=True):
                own = {
                    name: states[index].pop(name)
                    for name in self._state_names
                    if name in states.get(index, ())
                }
                if own:
                    saved.append(SavedState(param, self._name_of(i, param), index, own))
        commit = self._prepare_states(who, saved, given)
        return {**given, "state": states, "param_groups": groups}, commit

    def _loaded_group(
        self,
        who: str,
        packed: dict[str, Any],
        states: dict[Any, dict[str, Any]],
        group: dict[str, Any],
    ) -> dict[str, Any]:
        """A group of a state dict as this optimizer has it; `states` may be changed."""
        del states, group
        for variant in ("amsgrad", "maximize"):
            if packed.get(variant):
                raise ValueError(
                    f"{who}: {variant} is True; this variant is not available. Load a state dict "
                    "of an optimizer without it."
                )
        self._check_group(who, packed)
        return packed

    @staticmethod
    def _checked_state(who: str, saved: SavedState, name: str) -> torch.Tensor:
        """This rank's part of a saved state."""
        argument = f"{name} of {saved.where}"
        values = local_tensor(check_tensor(who, argument, saved.values[name])).detach()
        local = local_tensor(saved.param)
        if values.shape != local.shape:
            raise ValueError(
                f"{who}: {argument} has shape {tuple(values.shape)}; that of the parameter, "
                f"{tuple(local.shape)}, is required."
            )
        return values

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros.

        Parameters
        ----------
        set_to_none : bool, optional
            True drops them. Default what `set_grad_none` said, else True.

        Raises
        ------
        ValueError
            If it contradicts `set_grad_none`.
        """
        if set_to_none is None:
            set_to_none = self.set_grad_none if self.set_grad_none is not None else True
        elif self.set_grad_none is not None and bool(set_to_none) != self.set_grad_none:
            raise ValueError(
                f"{type(self).__name__}.zero_grad: set_to_none is {set_to_none}, but the optimizer "
                f"was made with set_grad_none={self.set_grad_none}; they must agree. Leave "
                "set_grad_none out, it is deprecated."
            )
        if not self.use_decoupled_grad:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for param in group["params"]:
                grad = getattr(param, "decoupled_grad", None)
                if grad is not None and set_to_none:
                    param.decoupled_grad = None
                elif grad is not None:
                    grad.zero_()

    def _flag(self, device: torch.device) -> torch.Tensor:
        """An int32 zero for functions that ask for a flag."""
        if device not in self._flags:
            self._flags[device] = torch.zeros(1, dtype=torch.int32, device=device)
        return self._flags[device]

    # --- gradients ------------------------------------------------------------------------------

    def _checked_gradients(self, index: int, takes_simple: bool) -> tuple[Pairs, Pairs]:
        """Parameters of a group with their gradients: the simple ones, and the others.

        Simple are plain contiguous tensors whose gradients are such; telling them apart here costs
        a third of treating all as the others.

        Raises
        ------
        ValueError, TypeError, RuntimeError
            For what a step cannot take, before it writes anything.
        """
        simple: Pairs = []
        others: Pairs = []
        name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        for param in self.param_groups[index]["params"]:
            grad = getattr(param, name, None)
            if grad is None:
                continue
            if (
                takes_simple
                and type(param) in _PLAIN
                and type(grad) is torch.Tensor
                and grad.layout is torch.strided
                and grad.is_contiguous()
                and param.is_contiguous()
                and grad.dtype in _DTYPES
                and grad.shape == param.shape
                and grad.device == param.device
                and not grad.is_neg()
            ):
                simple.append((param, grad))
            else:
                self._check_params(index, [(param, grad)])
                self._check_gradient(index, param, grad)
                others.append((param, grad))
        self._check_params(index, (*simple, *others))
        for param, _ in others:
            self._check_layout(index, param)
        return simple, others

    def _check_gradient(self, index: int, param: torch.Tensor, given: Any) -> None:
        name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        what = f"{name} of {self._name_of(index, param)}"
        who = f"{type(self).__name__}.step"
        grad, local = local_tensor(check_tensor(who, what, given)), local_tensor(param)
        if grad.layout is not torch.strided:
            raise RuntimeError(
                f"{who}: {what} has layout {grad.layout}; a dense one is required. Use "
                "torch.optim.SparseAdam, or make it dense with to_dense()."
            )
        if grad.dtype not in _DTYPES:
            raise TypeError(
                f"{who}: {what} has dtype {grad.dtype}; FP32, FP16 or BF16 is required."
            )
        if grad.shape != local.shape:
            raise ValueError(
                f"{who}: {what} has shape {tuple(grad.shape)}; that of the parameter, "
                f"{tuple(local.shape)}, is required."
            )
        if grad.device != local.device:
            raise ValueError(
                f"{who}: {what} is on {grad.device}; the parameter's device, {local.device}, is "
                "required."
            )

    def _check_params(self, index: int, pairs: Iterable[tuple[torch.Tensor, Any]]) -> None:
        who = f"{type(self).__name__}.step"
        dtypes = {param.dtype for param, _ in pairs}
        if not dtypes <= _DTYPES:
            param = next(param for param, _ in pairs if param.dtype not in _DTYPES)
            raise TypeError(
                f"{who}: {self._name_of(index, param)} has dtype {param.dtype}; FP32, FP16 or BF16 "
                "is required. Convert it, or use the optimizer of torch.optim."
            )
        if any(device.type == "meta" for device in {param.device for param, _ in pairs}):
            param = next(param for param, _ in pairs if param.device.type == "meta")
            raise ValueError(
                f"{who}: {self._name_of(index, param)} is on meta; a device with memory is "
                "required. Call to_empty() of its module and initialise it."
            )

    def _check_layout(self, index: int, param: torch.Tensor) -> None:
        local = local_tensor(param)
        if isinstance(local, QuantizedTensor):
            return
        strides = zip(local.shape, local.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in strides):
            raise ValueError(
                f"{type(self).__name__}.step: {self._name_of(index, param)} has shape "
                f"{tuple(local.shape)} and strides {local.stride()}; elements that share no memory "
                "are required. Make the parameter of a copy: "
                "torch.nn.Parameter(param.detach().clone())."
            )

    def _laid_out(self, param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """This rank's part of a checked gradient, in the layout in which the parameter is read."""
        grad, local = local_tensor(grad), local_tensor(param)
        if isinstance(grad, QuantizedTensor):
            grad = grad.dequantize(dtype=torch.float32)
        grad = grad.resolve_neg()
        if isinstance(local, QuantizedTensor):
            return grad.contiguous()
        if not has_same_layout(grad, local) or has_gaps(local):
            grad = plain_like(local, grad.dtype).copy_(grad)
        return grad


def has_gaps(local: torch.Tensor) -> bool:
    """Whether memory between the elements of a plain tensor is not its own."""
    return not torch.ops.aten.is_non_overlapping_and_dense.default(local)


def without_gaps(local: torch.Tensor) -> torch.Tensor:
    """A plain tensor itself, or if it has gaps a copy, of the layout of `plain_like`."""
    return plain_like(local, local.dtype).copy_(local) if has_gaps(local) else local
