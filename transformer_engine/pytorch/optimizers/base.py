# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers share: gradients, their flags, and the deprecated ``set_grad_none``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
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

    def _gradients_of(self, params: Sequence[torch.Tensor], takes_simple: bool) -> tuple[Any, Any]:
        """Parameters with their gradients: the simple ones, and those that need a closer look.

        Simple are plain contiguous tensors whose gradients are such; telling them apart here costs
        a third of treating all as the others.
        """
        simple: list[tuple[torch.Tensor, torch.Tensor]] = []
        others: list[tuple[torch.Tensor, torch.Tensor]] = []
        name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        for param in params:
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
            ):
                simple.append((param, grad))
            else:
                others.append((param, self._laid_out(param, grad)))
        return simple, others

    def _dtypes_of(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> set[torch.dtype]:
        """The dtypes of parameters.

        Raises
        ------
        TypeError
            If one cannot be updated.
        """
        dtypes = {param.dtype for param, _ in pairs}
        if not dtypes <= _DTYPES:
            refused = ", ".join(sorted(str(dtype) for dtype in dtypes - _DTYPES))
            raise TypeError(
                f"{type(self).__name__}.step: parameters have dtype {refused}; FP32, FP16 or BF16 "
                "is required. Convert them, or use the optimizer of torch.optim."
            )
        return dtypes

    def _laid_out(self, param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """This rank's part of a gradient, in the layout of the parameter.

        Raises
        ------
        RuntimeError
            If it is sparse.
        """
        grad, local = local_tensor(grad), local_tensor(param)
        if grad.layout is not torch.strided:
            raise RuntimeError(
                f"{type(self).__name__}.step: a gradient has layout {grad.layout}; a dense one is "
                "required. Use torch.optim.SparseAdam, or make it dense with to_dense()."
            )
        if isinstance(grad, QuantizedTensor):
            grad = grad.dequantize(dtype=torch.float32)
        if isinstance(local, QuantizedTensor):
            return grad.contiguous()
        if grad.shape == local.shape and not has_same_layout(grad, local):
            grad = plain_like(local, grad.dtype).copy_(grad)
        return grad
