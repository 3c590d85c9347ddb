# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent, all parameters in a few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import required

from ..arguments import check_flag, check_not_negative, check_number
from ..cpp_extensions.multi_tensor import multi_tensor_sgd
from ..tensor import QuantizedTensor
from .adam_state import wrapped_like
from .base import (
    CHUNK_SIZE,
    FusedOptimizer,
    Pairs,
    SavedState,
    count_writes_of,
    plain_like,
    without_gaps,
)
from .multi_tensor_apply import local_tensor

_REQUIRED: Any = required  # torch's mark of a number that must be given


_Key = tuple[torch.device, bool]  # and whether it is the first step of the parameters


class _Lists:
    """Arguments of one call."""

    __slots__ = ("grads", "momenta", "params")

    def __init__(self) -> None:
        self.grads: list[torch.Tensor] = []
        self.params: list[torch.Tensor] = []
        self.momenta: list[torch.Tensor] = []


class FusedSGD(FusedOptimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD.

    For a gradient g of a parameter p::

        d = g / most_recent_scale (+ weight_decay * p)
        b = d in the first step of p, else momentum * b + (1 - dampening) * d     (with momentum)
        d = d + momentum * b (nesterov), or b
        p = p - lr * d

    with ``weight_decay * p`` added in the last but one line instead with `wd_after_momentum`.
    Arithmetic is FP32, rounded once to the dtype of what is written.

    Parameters
    ----------
    params : iterable
        Parameters or groups; FP32, FP16, BF16 or quantized, DTensors too.
    lr : float
        Learning rate, 0 or more; required here or in every group.
    momentum, dampening, weight_decay : float, default 0
        See above; momentum and weight decay are 0 or more.
    nesterov : bool, default False
        Needs a momentum and no dampening.
    wd_after_momentum : bool, default False
        Where weight decay enters.
    materialize_master_grads : bool, default True
        For apex's mixed precision, whose hooks read it; without effect here.
    set_grad_none : bool, optional
        Deprecated: use the argument of `zero_grad`.

    Raises
    ------
    ValueError, TypeError
        Numbers out of their range, or no numbers.
    """

    _state_names = ("momentum_buffer",)

    def __init__(  # noqa: PLR0913  # frozen public signature
        self,
        params: Iterable[Any],
        lr: float = _REQUIRED,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool | None = None,
    ) -> None:
        who = type(self).__name__
        self.wd_after_momentum = check_flag(who, "wd_after_momentum", wd_after_momentum)
        self.materialize_master_grads = bool(materialize_master_grads)
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        self._check_group(who, defaults)
        super().__init__(params, defaults)
        self._set_up(set_grad_none)

    def _check_group(self, who: str, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            if group[name] is not _REQUIRED:
                check_not_negative(who, name, group[name])
        check_number(who, "dampening", group["dampening"])
        momentum, dampening = group["momentum"], group["dampening"]
        if check_flag(who, "nesterov", group["nesterov"]) and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"{who}: nesterov is True with momentum {momentum} and dampening {dampening}; a "
                "momentum above 0 and no dampening are required."
            )

    def _prepare_states(
        self, who: str, saved: list[SavedState], state_dict: dict[str, Any]
    ) -> Callable[[], None]:
        del state_dict
        buffers: dict[torch.Tensor, torch.Tensor | None] = {}
        for one in saved:
            buffers[one.param] = None
            if one.values["momentum_buffer"] is not None:  # torch's mark of none yet
                values = self._checked_state(who, one, "momentum_buffer")
                buffer = self._new_buffer(local_tensor(one.param)).copy_(values)
                buffers[one.param] = wrapped_like(one.param, buffer)

        def commit() -> None:
            for param, buffer in buffers.items():
                self.state[param]["momentum_buffer"] = buffer

        return commit

    @staticmethod
    def _new_buffer(local: torch.Tensor) -> torch.Tensor:
        """Uninitialised: of the parameter's dtype, FP32 where that is quantized."""
        is_quantized = isinstance(local, QuantizedTensor)
        return plain_like(local, torch.float32 if is_quantized else local.dtype)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def __getstate__(self) -> dict[str, Any]:
        own = ("set_grad_none", "wd_after_momentum", "materialize_master_grads")
        own += ("most_recent_scale", "scale_set_by_backward")
        kept = {name: getattr(self, name) for name in own}
        return {**super().__getstate__(), **kept, "_flags": {}}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss anew; called with gradients enabled.

        Returns
        -------
        What the closure returned, or None.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            For sparse gradients, gradients that do not fit their parameter, and parameters of other
            dtypes than FP32, FP16 and BF16 or without memory of their own; nothing is written.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held = [self._checked_gradients(i, True) for i in range(len(self.param_groups))]
        for group, (simple, others) in zip(self.param_groups, held, strict=True):
            self._step_group(group, simple, others)
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        return loss

    def _step_group(self, group: dict[str, Any], simple: Pairs, others: Pairs) -> None:
        calls: dict[_Key, _Lists] = {}
        finishes: list[Callable[[], object]] = []
        self._add(calls, [(param, grad, param) for param, grad in simple], group)
        for param, grad in others:
            local = local_tensor(param)
            if isinstance(local, QuantizedTensor):
                values = local.dequantize(dtype=torch.float32)
                finishes.append(partial(local.quantize_, values))
            else:
                values = without_gaps(local)
                if values is not local:
                    finishes.append(partial(local.copy_, values))
            self._add(calls, [(param, self._laid_out(param, grad), values)], group)
        for (device, is_first), lists in calls.items():
            multi_tensor_sgd(
                CHUNK_SIZE,
                self._flag(device),
                [lists.grads, lists.params, lists.momenta],
                *(
                    group["weight_decay"],
                    group["momentum"],
                    group["dampening"],
                    group["lr"],
                ),
                *(group["nesterov"], is_first, self.wd_after_momentum),
                1.0 / self.most_recent_scale,
            )
        for finish in finishes:
            finish()
        for param, _ in others:
            count_writes_of(param)

    def _add(
        self,
        calls: dict[_Key, _Lists],
        triples: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Give parameters, their gradients and plain values to the calls that take them."""
        has_momentum = group["momentum"] != 0
        key = None
        for param, grad, values in triples:
            momentum, is_first = values, False  # not read without momentum
            if has_momentum:
                momentum, is_first = self._momentum_of(param, values)
            if key is None or is_first is not key[1] or values.device != key[0]:
                key = (values.device, is_first)
                lists = calls.setdefault(key, _Lists())
            lists.grads.append(grad)
            lists.params.append(values)
            lists.momenta.append(momentum)

    def _momentum_of(self, param: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """The buffer of a parameter, and whether it is new."""
        state = self.state[param]
        buffer = state.get("momentum_buffer")
        if buffer is not None:
            return local_tensor(buffer), False
        buffer = self._new_buffer(local_tensor(param)).zero_()
        state["momentum_buffer"] = wrapped_like(param, buffer)
        return buffer, True
