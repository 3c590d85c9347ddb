# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The states of FusedAdam: made, given and read as values, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments import check_number, received
from ..tensor import QuantizedTensor
from .adam_state import (
    SCALED_MAX,
    join_master,
    load_scaled,
    split_master,
    store_scaled,
    store_with_scale,
    wrapped_like,
)
from .base import FusedOptimizer, SavedState, has_same_layout, plain_like
from .multi_tensor_apply import local_tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
STATES = (*MOMENTS, "master_param")


class AdamStates(FusedOptimizer):
    """What FusedAdam keeps for a parameter, in the dtypes it was asked for."""

    _state_names = STATES
    capturable: bool
    master_weights: bool
    store_param_remainders: bool
    name_to_dtype_map: dict[str, torch.dtype]
    _scales: dict[torch.Tensor, dict[str, torch.Tensor]]

    def initialize_state(
        self, param: torch.Tensor, store_param_remainders: bool | None = None
    ) -> None:
        """Make the states of a parameter that it does not have yet: moments 0, the master a copy.

        Parameters
        ----------
        param : torch.Tensor
            A parameter of this optimizer.
        store_param_remainders : bool, optional
            Whether the master of a BF16 parameter is its remainder; default the optimizer's own
            setting.
        """
        if store_param_remainders is None:
            store_param_remainders = self.store_param_remainders
        state, local = self.state[param], local_tensor(param)
        for name in MOMENTS:
            if name not in state:
                stored = plain_like(local, self.name_to_dtype_map[name]).zero_()
                state[name] = wrapped_like(param, stored)
        if not self.master_weights or "master_param" in state:
            return
        if store_param_remainders and self._may_have_remainder(local):
            stored = plain_like(local, torch.int16).zero_()
            state["master_param"] = wrapped_like(param, stored)
        else:
            self._store(param, "master_param", self._float_values(local))

    @staticmethod
    def _may_have_remainder(local: torch.Tensor) -> bool:
        return local.dtype is torch.bfloat16 and not isinstance(local, QuantizedTensor)

    @staticmethod
    def _float_values(local: torch.Tensor) -> torch.Tensor:
        """A copy in FP32."""
        if isinstance(local, QuantizedTensor):
            return local.dequantize(dtype=torch.float32).detach()
        return plain_like(local, torch.float32).copy_(local)

    def _scale(self, param: torch.Tensor, name: str) -> torch.Tensor:
        """The scale of a stored state, 1 as long as it holds what was made elsewhere."""
        scales = self._scales.setdefault(param, {})
        if name not in scales:
            scales[name] = self._new_scale(local_tensor(param))
        return scales[name]

    @staticmethod
    def _new_scale(local: torch.Tensor) -> torch.Tensor:
        return torch.ones(1, dtype=torch.float32, device=local.device)

    def _store(self, param: torch.Tensor, name: str, values: torch.Tensor) -> None:
        """Write FP32 values to a state, in the dtype it has or, for a new one, is to have."""
        state, local = self.state[param], local_tensor(param)
        dtype = self.name_to_dtype_map[name]
        stored = local_tensor(state[name]) if name in state else None
        if stored is None or stored.dtype != dtype or stored.shape != local.shape:
            stored = plain_like(local, dtype)
            state[name] = wrapped_like(param, stored)
        if dtype in SCALED_MAX:
            scale, flag = self._scale(param, name), self._flag(stored.device)
            store_scaled(self._laid_like(stored, values), stored, scale, flag)
        else:
            stored.copy_(values)

    def set_scaled_state(
        self, param: torch.Tensor, state_name: str, unscaled_state: torch.Tensor
    ) -> None:
        """Store values as the optimizer keeps this state: cast, and scaled where it has few bits.

        Parameters
        ----------
        param : torch.Tensor
            A parameter of this optimizer.
        state_name : str
            ``exp_avg``, ``exp_avg_sq`` or ``master_param``.
        unscaled_state : torch.Tensor
            Of the parameter's shape (of this rank's part of it), or its whole as a DTensor; a
            floating-point dtype, or int16 for the remainder of a BF16 parameter. Floating-point
            masters of a parameter with remainders are divided into both, which writes to the
            parameter; a remainder given to others is completed by the parameter.

        Raises
        ------
        ValueError
            For another name or shape.
        TypeError
            For other dtypes; int16 for parameters that have no remainders.
        """
        who = f"{type(self).__name__}.set_scaled_state"
        self._check_name(who, state_name)
        values, local = local_tensor(unscaled_state).detach(), local_tensor(param)
        if values.shape != local.shape:
            raise ValueError(
                f"{who}: unscaled_state has shape {tuple(values.shape)}; that of the parameter, "
                f"{tuple(local.shape)}, is required."
            )
        self._check_state_dtype(f"{who}: unscaled_state", local, state_name, values)
        rounded, values = self._as_kept(local, state_name, values)
        if values.dtype != torch.int16:
            self._store(param, state_name, values)
            return
        if rounded is not None:
            with torch.no_grad():
                local.copy_(rounded)
        state = self.state[param]
        stored = local_tensor(state[state_name]) if state_name in state else None
        if stored is None or stored.dtype != torch.int16:
            stored = plain_like(local, torch.int16)
            state[state_name] = wrapped_like(param, stored)
        stored.copy_(values)

    def _check_state_dtype(
        self, what: str, local: torch.Tensor, name: str, values: torch.Tensor
    ) -> None:
        takes_remainder = name == "master_param" and self._may_have_remainder(local)
        if values.is_floating_point() or (takes_remainder and values.dtype == torch.int16):
            return
        rule = "int16 or a floating-point dtype" if takes_remainder else "a floating-point dtype"
        raise TypeError(f"{what} has dtype {values.dtype}; {rule} is required.")

    def _as_kept(
        self, local: torch.Tensor, name: str, values: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """FP32 values or a remainder, as this optimizer keeps them; what the parameter becomes."""
        values = values.to(local.device)
        has_remainder = (
            name == "master_param"
            and self.store_param_remainders
            and self._may_have_remainder(local)
        )
        if has_remainder and values.dtype != torch.int16:
            return split_master(values.to(torch.float32))
        if not has_remainder and values.dtype == torch.int16:
            return None, join_master(local.contiguous(), values.contiguous())
        return None, values if has_remainder else values.to(torch.float32)

    def get_unscaled_state(self, param: torch.Tensor, state_name: str) -> torch.Tensor:
        """The values of a state: FP32, or the int16 of remainders.

        Parameters
        ----------
        param : torch.Tensor
            A parameter of this optimizer with that state.
        state_name : str
            ``exp_avg``, ``exp_avg_sq`` or ``master_param``.

        Returns
        -------
        torch.Tensor
            The stored tensor itself where it is FP32 or int16, else a new one.

        Raises
        ------
        ValueError
            For another name.
        KeyError
            If the parameter has no such state yet.
        """
        self._check_name(f"{type(self).__name__}.get_unscaled_state", state_name)
        state: torch.Tensor = self.state[param][state_name]
        stored = local_tensor(state)
        if stored.dtype in (torch.float32, torch.int16):
            return state
        return wrapped_like(param, self._loaded(param, state_name, stored))

    def _loaded(self, param: torch.Tensor, name: str, stored: torch.Tensor) -> torch.Tensor:
        if self._is_scaled(name, stored):
            return load_scaled(stored, self._scale(param, name), self._flag(stored.device))
        return stored.float()

    @staticmethod
    def _check_name(who: str, name: Any) -> None:
        if name not in STATES:
            raise ValueError(
                f"{who}: state_name is {received(name)}; one of {', '.join(STATES)} is required."
            )

    def state_dict(self) -> dict[str, Any]:
        """As of any optimizer; moments and masters are FP32 values, remainders int16.

        So a checkpoint fits optimizers with other dtypes for their states. Where states have a
        scale, ``"scales"`` holds it, by parameter and state (float32 [1]): with it, the values come
        back as the bits that were stored.
        """
        result = super().state_dict()
        scales: dict[Any, dict[str, torch.Tensor]] = {}
        for packed, group in zip(result["param_groups"], self.param_groups, strict=True):
            for index, param in zip(packed["params"], group["params"], strict=True):
                if index not in result["state"]:
                    continue
                state = result["state"][index]
                result["state"][index] = {
                    name: self.get_unscaled_state(param, name) if name in STATES else value
                    for name, value in state.items()
                }
                own = {
                    name: self._scale(param, name).clone()
                    for name in STATES
                    if name in state and self._is_scaled(name, local_tensor(state[name]))
                }
                if own:
                    scales[index] = own
        if scales:
            result["scales"] = scales
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, all of it or, where that raises, nothing.

        States are cast and scaled as configured. Masters that the state dict has as remainders are
        completed by the parameters: load those first. Without `master_weights` masters are left.

        Parameters
        ----------
        state_dict : dict
            From `state_dict`, perhaps of an optimizer with other dtypes for its states, or of
            torch.optim.Adam or AdamW if all parameters of a group have taken the same steps. A
            group without one of this optimizer's numbers keeps the present one.

        Raises
        ------
        ValueError, TypeError
            For groups of other sizes, numbers out of their range, and states that do not fit their
            parameters.
        """
        super().load_state_dict(state_dict)

    def _loaded_group(
        self,
        who: str,
        packed: dict[str, Any],
        states: dict[Any, dict[str, Any]],
        group: dict[str, Any],
    ) -> dict[str, Any]:
        packed = super()._loaded_group(who, packed, states, group)
        if "step" not in packed:
            # torch counts the steps of each parameter.
            held = [states[index] for index in packed["params"] if "step" in states.get(index, ())]
            counts = [float(state.pop("step")) for state in held]
            if len(set(counts)) > 1:
                raise ValueError(
                    f"{who}: its parameters have taken {min(counts):g} to {max(counts):g} steps; "
                    "one number is required. Put parameters with other numbers in other groups."
                )
            packed |= {"step": int(counts[0])} if counts else {}
            return packed
        step = packed["step"]
        if isinstance(step, torch.Tensor) and step.numel() == 1:
            step = step.item()
        rule = "it must be a whole number, 0 or more."
        check_number(who, "step", step, rule, lambda x: 0 <= x < 2**31 and x == int(x))
        return packed | {"step": self._converted_step(packed["step"], group)}

    def _prepare_states(
        self, who: str, saved: list[SavedState], state_dict: dict[str, Any]
    ) -> Callable[[], None]:
        made: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        scales: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        rounded: list[tuple[torch.Tensor, torch.Tensor]] = []
        saved_scales = state_dict.get("scales", {})
        names = STATES if self.master_weights else MOMENTS
        for one in saved:
            local, state = local_tensor(one.param), made.setdefault(one.param, {})
            for name in names:
                if one.values.get(name) is None:
                    continue
                values = self._checked_state(who, one, name)
                self._check_state_dtype(f"{who}: {name} of {one.where}", local, name, values)
                high, values = self._as_kept(local, name, values)
                if high is not None:
                    rounded.append((one.param, high))
                former = saved_scales.get(one.index, {}).get(name)
                stored, scale = self._new_state(local, name, values, former)
                state[name] = wrapped_like(one.param, stored)
                if scale is not None:
                    scales.setdefault(one.param, {})[name] = scale

        @torch.no_grad()
        def commit() -> None:
            for param, state in made.items():
                self.state[param].update(state)
            self._scales = scales
            for param, high in rounded:
                local_tensor(param).copy_(high)

        return commit

    @staticmethod
    def _laid_like(stored: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if has_same_layout(values, stored):
            return values
        return torch.empty_like(stored, dtype=torch.float32).copy_(values)

    def _new_state(
        self, local: torch.Tensor, name: str, values: torch.Tensor, former_scale: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A stored state of values, by their former scale if they are the same as then."""
        dtype = torch.int16 if values.dtype == torch.int16 else self.name_to_dtype_map[name]
        stored = plain_like(local, dtype)
        if dtype not in SCALED_MAX:
            return stored.copy_(values), None
        values = self._laid_like(stored, values)
        scale, flag = self._new_scale(local), self._flag(local.device)
        if isinstance(former_scale, torch.Tensor) and former_scale.numel() == 1:
            scale.copy_(former_scale.reshape(1))
            if store_with_scale(values, stored, scale, flag):
                return stored, scale
        store_scaled(values, stored, scale, flag)
        return stored, scale

    def _is_scaled(self, name: str, stored: torch.Tensor) -> bool:
        """Whether a state has a scale; one of another dtype was made by the caller."""
        return stored.dtype in SCALED_MAX and stored.dtype == self.name_to_dtype_map[name]

    @staticmethod
    def _device_of(group: dict[str, Any]) -> torch.device:
        params = group["params"]
        return local_tensor(params[0]).device if params else torch.device("cpu")

    def _converted_step(self, step: Any, group: dict[str, Any]) -> int | torch.Tensor:
        if not self.capturable:
            return int(step)
        device = self._device_of(group)
        if not isinstance(step, torch.Tensor) or step.dtype is not torch.int32:
            return torch.as_tensor(step, device=device).to(torch.int32).reshape(1)
        return step.to(device)
