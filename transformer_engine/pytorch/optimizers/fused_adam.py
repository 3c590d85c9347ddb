# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW, all parameters in a few calls, with states in fewer bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..arguments import check_flag, check_not_negative, check_number, received
from ..cpp_extensions.multi_tensor import (
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adam_capturable_master,
    multi_tensor_adam_fp8,
    multi_tensor_adam_param_remainder,
)
from ..tensor import Float8Quantizer, Float8Tensor, QuantizedTensor
from ..tensor.storage.write_tracking import count_write, mark_written
from .adam_state import SCALED_MAX, load_scaled, store_scaled
from .adam_states import MOMENTS, STATES, AdamStates
from .base import CHUNK_SIZE, Pairs, count_writes_of, without_gaps
from .multi_tensor_apply import local_tensor

_MASTER_DTYPES = (torch.float32, torch.float16)
_MOMENT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)


# Elements of FP32 values in place of scaled states that are held at a time: on CPUs those that a
# cache holds, elsewhere enough to fill the device.
_MOST_WORKING = {True: 2**18, False: 2**25}
_HALVES = {torch.float16, torch.bfloat16}

_FUNCTIONS = {
    "plain": multi_tensor_adam,
    "master": multi_tensor_adam,
    "remainder": multi_tensor_adam_param_remainder,
    "float8": multi_tensor_adam_fp8,
}
_CAPTURABLE_FUNCTIONS = {
    "plain": multi_tensor_adam_capturable,
    "master": multi_tensor_adam_capturable_master,
}
# Device, kind (of the functions above), and the format of FP8 parameters.
_Key = tuple[torch.device, str, int | None]


@dataclass(slots=True)
class _Call:
    """Arguments of one native call, and what has to follow it."""

    function: Callable[..., None]
    arguments: tuple[Any, ...]  # after the options
    lists: list[list[torch.Tensor]]
    after: list[Callable[[], object]] = field(default_factory=list)
    working_numel: int = 0  # of values in place of scaled states

    def run(self, flag: torch.Tensor, numbers: tuple[Any, ...], options: tuple[Any, ...]) -> None:
        self.function(CHUNK_SIZE, flag, self.lists, *numbers, *options, *self.arguments)
        for finish in self.after:
            finish()


def _kind_of(master: torch.Tensor | None) -> str:
    if master is None:
        return "plain"
    return "remainder" if master.dtype is torch.int16 else "master"


def _is_delayed_float8(tensor: Any) -> bool:
    """Whether the native step writes the bytes itself: whole FP8 tensors with a known scale."""
    return (
        isinstance(tensor, Float8Tensor)
        and isinstance(tensor._quantizer, Float8Quantizer)
        and tensor._data is not None
        and tensor._data.is_contiguous()
        and tensor._whole is None
    )


def _finish_float8(tensor: Any) -> None:
    """After the native step wrote the bytes: the transpose belongs to older ones."""
    count_write(tensor)
    mark_written(tensor._data, None)
    if tensor._transpose is not None and tensor._quantizer.columnwise_usage:
        tensor._create_transpose()
    else:
        tensor._reset_caches()


class FusedAdam(AdamStates):
    """Adam (``adam_w_mode=False``) or AdamW, as torch.optim.Adam and AdamW.

    For a gradient g of a parameter p in step t::

        g = g + weight_decay * p                                                  (Adam)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g^2
        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        u = u + weight_decay * p                                                  (AdamW)
        p = p - lr * u

    Arithmetic is FP32, rounded once to the dtype of what is written. Sources: Kingma and Ba,
    arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.

    The state of a parameter is ``exp_avg`` (m), ``exp_avg_sq`` (v) and, with `master_weights`,
    ``master_param``. The count of steps is ``group["step"]``.

    Parameters
    ----------
    params : iterable
        Parameters or groups; FP32, FP16, BF16 or quantized, DTensors too.
    lr : float, default 1e-3
        Learning rate, 0 or more. With `capturable` it becomes a float32 tensor on the parameters'
        device.
    betas : (float, float), default (0.9, 0.999)
        Decay rates, in [0, 1).
    eps : float, default 1e-8
        Added to the root, 0 or more.
    weight_decay : float, default 0
        See above; 0 or more.
    amsgrad : bool, default False
        Not available.
    bias_correction : bool, default True
        False replaces the divisors ``1 - beta^t`` by 1.
    adam_w_mode : bool, default True
        Where weight decay enters.
    capturable : bool, default False
        For CUDA graphs: lr and step are read from device memory, gradients are multiplied by the
        gradient scaler's inverse scale, and nothing is written where it found an overflow.
    master_weights : bool, default False
        Keep a precise copy of each parameter, which is what the steps change; the parameter gets
        the rounded copy. Quantized parameters other than FP8 with delayed scaling need it.
    master_weight_dtype : torch.dtype, default torch.float32
        FP32, or FP16 with a scale per tensor.
    exp_avg_dtype, exp_avg_sq_dtype : torch.dtype, default torch.float32
        FP32, BF16, or with a scale per tensor FP16 or uint8 (FP8 E4M3).
    use_decoupled_grad : bool, default False
        Gradients are ``param.decoupled_grad``, of any dtype, instead of ``param.grad``.
    store_param_remainders : bool, default False
        Masters of BF16 parameters are kept as the int16 that the parameter lacks, exactly. Needs
        `master_weights` in FP32; without any it has no effect, and warns.
    set_grad_none : bool, optional
        Deprecated: use the argument of `zero_grad`.

    Raises
    ------
    RuntimeError
        For `amsgrad`, for dtypes other than listed, and for combinations of options that are
        excluded above: with `capturable` masters are FP32, both moments FP32 or both BF16, and
        there are no remainders.
    ValueError, TypeError
        Numbers out of their range, or no numbers.
    """

    def __init__(  # noqa: PLR0913  # frozen public signature
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        who = type(self).__name__
        if amsgrad:
            raise RuntimeError(f"{who}: amsgrad is True; this variant is not available. Leave it.")
        self.adam_w_mode = 1 if check_flag(who, "adam_w_mode", adam_w_mode) else 0
        self.capturable = check_flag(who, "capturable", capturable)
        self.master_weights = check_flag(who, "master_weights", master_weights)
        self.store_param_remainders = check_flag(
            who, "store_param_remainders", store_param_remainders
        )
        self.use_decoupled_grad = check_flag(who, "use_decoupled_grad", use_decoupled_grad)
        self.master_weight_dtype = master_weight_dtype
        self.name_to_dtype_map = {
            "exp_avg": exp_avg_dtype,
            "exp_avg_sq": exp_avg_sq_dtype,
            "master_param": master_weight_dtype,
        }
        self._check_dtypes(who)
        self._check_combination(who)
        self._scales: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._step_supports_amp_scaling = self.capturable
        defaults = {
            "lr": lr,
            "bias_correction": check_flag(who, "bias_correction", bias_correction),
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        self._check_group(who, defaults)
        super().__init__(params, defaults)
        self._set_up(set_grad_none)
        if self.capturable:
            for group in self.param_groups:
                self._move_lr(group, self._device_of(group))

    def _check_dtypes(self, who: str) -> None:
        for name, dtype in self.name_to_dtype_map.items():
            allowed = _MASTER_DTYPES if name == "master_param" else _MOMENT_DTYPES
            if dtype not in allowed:
                argument = "master_weight_dtype" if name == "master_param" else f"{name}_dtype"
                names = ", ".join(str(one) for one in allowed)
                raise RuntimeError(
                    f"{who}: {argument} is {received(dtype)}; one of {names} is required."
                )

    def _check_combination(self, who: str) -> None:
        is_float_master = self.master_weight_dtype == torch.float32
        if self.store_param_remainders and not self.master_weights:
            # Megatron asks for it whether it keeps the masters itself or not.
            warnings.warn(
                f"{who}: store_param_remainders has no effect without master_weights.",
                UserWarning,
                stacklevel=3,
            )
        elif self.store_param_remainders and not is_float_master:
            raise RuntimeError(
                f"{who}: store_param_remainders is True with master_weight_dtype="
                f"{self.master_weight_dtype}; FP32 master weights are required."
            )
        if not self.capturable:
            return
        moments = {self.name_to_dtype_map[name] for name in MOMENTS}
        if moments not in ({torch.float32}, {torch.bfloat16}):
            raise RuntimeError(
                f"{who}: capturable is True with exp_avg_dtype="
                f"{self.name_to_dtype_map['exp_avg']} and exp_avg_sq_dtype="
                f"{self.name_to_dtype_map['exp_avg_sq']}; both FP32 or both BF16 are required."
            )
        if not is_float_master or self.store_param_remainders:
            raise RuntimeError(
                f"{who}: capturable is True with master_weight_dtype={self.master_weight_dtype} "
                f"and store_param_remainders={self.store_param_remainders}; FP32 masters without "
                "remainders are required."
            )

    def _check_group(self, who: str, group: dict[str, Any]) -> None:
        lr = group["lr"]
        if isinstance(lr, torch.Tensor) and lr.numel() != 1:
            raise ValueError(f"{who}: lr has shape {tuple(lr.shape)}; one element is required.")
        if not isinstance(lr, torch.Tensor):
            check_not_negative(who, "lr", lr)
        elif lr.device.type == "cpu":  # elsewhere it would be waited for
            check_not_negative(who, "lr", lr.item())
        check_not_negative(who, "weight_decay", group["weight_decay"])
        check_not_negative(who, "eps", group["eps"])
        check_flag(who, "bias_correction", group["bias_correction"])
        try:
            beta1, beta2 = group["betas"]
        except (TypeError, ValueError):
            raise TypeError(
                f"{who}: betas is {received(group['betas'])}; it must be two numbers."
            ) from None
        for name, beta in (("betas[0]", beta1), ("betas[1]", beta2)):
            check_number(who, name, beta, f"0 <= {name} < 1 must hold.", lambda x: 0.0 <= x < 1.0)

    def __getstate__(self) -> dict[str, Any]:
        own = ("set_grad_none", "adam_w_mode", "capturable", "master_weights", "_scales")
        own += ("store_param_remainders", "use_decoupled_grad", "master_weight_dtype")
        own += ("name_to_dtype_map", "_step_supports_amp_scaling")
        kept = {name: getattr(self, name) for name in own}
        return {**super().__getstate__(), **kept, "_flags": {}}

    # --- the step -------------------------------------------------------------------------------

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None
    ) -> Any:
        """One step.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss anew; called with gradients enabled.
        grad_scaler : torch.amp.GradScaler, optional
            Read with `capturable` only: gradients are unscaled here, and a step with an overflow
            writes nothing and does not count.

        Returns
        -------
        What the closure returned, or None.

        Raises
        ------
        RuntimeError
            For sparse gradients, FP16 and BF16 parameters in one group, quantized parameters with
            `capturable`, or without master weights (but for FP8 with delayed scaling), and for a
            scaler that was not used yet; nothing is written, as below.
        TypeError, ValueError
            For gradients that do not fit their parameter, and parameters of other dtypes or without
            memory of their own.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.capturable:
            self._check_scaler(grad_scaler)
        # States that are scaled go through FP32 values.
        is_direct = not any(self.name_to_dtype_map[name] in SCALED_MAX for name in STATES)
        held = [self._checked_gradients(i, is_direct) for i in range(len(self.param_groups))]
        for group, (simple, others) in zip(self.param_groups, held, strict=True):
            self._step_group(group, grad_scaler, simple, others)
        return loss

    def _check_params(self, index: int, pairs: Iterable[tuple[torch.Tensor, Any]]) -> None:
        super()._check_params(index, pairs)
        if {param.dtype for param, _ in pairs} >= _HALVES:
            raise RuntimeError(
                f"{type(self).__name__}.step: group {index} has FP16 and BF16 parameters; one of "
                "both is required. Use two groups."
            )

    def _step_group(
        self, group: dict[str, Any], grad_scaler: Any, simple: Pairs, others: Pairs
    ) -> None:
        run = self._captured_run(group, grad_scaler) if self.capturable else self._run_of(group)
        calls: dict[_Key, _Call] = {}
        self._add_simple(calls, simple)
        for param, grad in others:
            key = self._add(calls, param, self._laid_out(param, grad))
            if calls[key].working_numel > _MOST_WORKING[key[0].type == "cpu"]:
                run(key[0], calls.pop(key))
        for key, call in calls.items():
            run(key[0], call)
        for param, _ in others:
            count_writes_of(param)

    def _check_layout(self, index: int, param: torch.Tensor) -> None:
        super()._check_layout(index, param)
        local = local_tensor(param)
        if not isinstance(local, QuantizedTensor):
            return
        who = f"{type(self).__name__}.step: {self._name_of(index, param)}"
        if self.capturable:
            raise RuntimeError(
                f"{who} is a {type(local).__name__} and capturable is True; plain "
                "parameters are required. Leave capturable out."
            )
        if not self.master_weights and not _is_delayed_float8(local):
            raise RuntimeError(
                f"{who} is a {type(local).__name__} and master_weights is False; "
                "steps would be lost in its rounding. Pass master_weights=True."
            )

    def _add_simple(self, calls: dict[_Key, _Call], pairs: Pairs) -> None:
        """Give plain parameters, whose states are taken as they are, to their calls."""
        needed = STATES if self.master_weights else MOMENTS
        device = kind = None
        for param, grad in pairs:
            state = self.state[param]
            if any(name not in state for name in needed):
                self.initialize_state(param)
            master = state["master_param"] if self.master_weights else None
            its_kind = _kind_of(master)
            if kind is not its_kind or param.device != device:
                device, kind = param.device, its_kind
                call = self._call(calls, (device, kind, None), 4 if master is None else 5)
                grads, params, exp_avgs, exp_avg_sqs = call.lists[:4]
            grads.append(grad)
            params.append(param)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            if master is not None:
                call.lists[4].append(master)

    def _add(self, calls: dict[_Key, _Call], param: torch.Tensor, grad: torch.Tensor) -> _Key:
        """Give any parameter to the call that takes its kind."""
        self.initialize_state(param)
        local = local_tensor(param)
        after: list[Callable[[], object]] = []
        moments = [self._working(param, name, after) for name in MOMENTS]
        master = self._working(param, "master_param", after) if self.master_weights else None
        working_numel = local.numel() * len(after)
        written = local if isinstance(local, QuantizedTensor) else without_gaps(local)
        if written is not local:
            after.append(partial(local.copy_, written))
        kind, fp8_dtype, tensors = _kind_of(master), None, (grad, written, *moments)
        if isinstance(local, QuantizedTensor):
            # Without masters: of the rounded values, as any optimizer sees them.
            precise = self._float_values(local) if master is None else master
            if _is_delayed_float8(local):
                fp8: Any = local
                kind, fp8_dtype = "float8", int(fp8._fp8_dtype)
                tensors = (grad, fp8._data, *moments, precise)
                tensors += (fp8._quantizer.scale, fp8._quantizer.amax, fp8._scale_inv)
                after.append(partial(_finish_float8, fp8))
            else:
                kind, tensors = "plain", (grad, precise, *moments)
                after.append(partial(local.quantize_, precise))
        elif master is not None:
            tensors += (master,)
        key = (local.device, kind, fp8_dtype)
        call = self._call(calls, key, len(tensors))
        for one, tensor in zip(call.lists, tensors, strict=True):
            one.append(tensor)
        call.after += after
        call.working_numel += working_numel
        return key

    def _call(self, calls: dict[_Key, _Call], key: _Key, count: int) -> _Call:
        if key not in calls:
            _, kind, fp8_dtype = key
            functions = _CAPTURABLE_FUNCTIONS if self.capturable else _FUNCTIONS
            arguments = () if fp8_dtype is None else (fp8_dtype,)
            calls[key] = _Call(functions[kind], arguments, [[] for _ in range(count)])
        return calls[key]

    def _working(
        self, param: torch.Tensor, name: str, after: list[Callable[[], object]]
    ) -> torch.Tensor:
        """A state as the native step takes it: itself, or FP32 values that are stored after it."""
        stored = local_tensor(self.state[param][name])
        if not self._is_scaled(name, stored):
            return stored
        scale, flag = self._scale(param, name), self._flag(stored.device)
        values = load_scaled(stored, scale, flag)
        after.append(partial(store_scaled, values, stored, scale, flag))
        return values

    def _run_of(self, group: dict[str, Any]) -> Callable[[torch.device, _Call], None]:
        """Count the step; what runs the calls of a group."""
        self._convert_step(group)
        group["step"] = group.get("step", 0) + 1
        numbers = (float(group["lr"]), *group["betas"], group["eps"], group["step"])

        def run(device: torch.device, call: _Call) -> None:
            call.run(self._flag(device), numbers, self._options(group))

        return run

    def _options(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return self.adam_w_mode, bool(group["bias_correction"]), group["weight_decay"]

    # --- capturable -----------------------------------------------------------------------------

    @staticmethod
    def _move_lr(group: dict[str, Any], device: torch.device) -> None:
        """Let lr be a float32 tensor on a device; a scheduler may have put a number there."""
        lr = group["lr"]
        is_moved = isinstance(lr, torch.Tensor) and lr.dtype is torch.float32
        if not is_moved or lr.device != device:
            group["lr"] = torch.as_tensor(lr, dtype=torch.float32, device=device)

    def _convert_step(self, group: dict[str, Any]) -> None:
        """Let the count of steps be of the type that this optimizer uses."""
        if group.get("step") is not None:
            group["step"] = self._converted_step(group["step"], group)

    def _captured_run(
        self, group: dict[str, Any], grad_scaler: Any
    ) -> Callable[[torch.device, _Call], None]:
        """Count the step in device memory; what runs the calls of a group."""
        device = self._device_of(group)
        self._move_lr(group, device)
        if "step" not in group:
            group["step"] = torch.zeros(1, dtype=torch.int32, device=device)
        self._convert_step(group)
        inv_scale, flag_of = self._scaler_values(grad_scaler, device)
        group["step"].add_((flag_of(device) != 1).to(torch.int32))

        def run(device: torch.device, call: _Call) -> None:
            lr, step = group["lr"].to(device), group["step"].to(device)
            call.arguments = (inv_scale.to(device),)
            numbers = (lr, *group["betas"], group["eps"], step)
            call.run(flag_of(device), numbers, self._options(group))

        return run

    def _check_scaler(self, grad_scaler: Any) -> None:
        is_used = grad_scaler is not None and grad_scaler.is_enabled()
        if is_used and grad_scaler._get_scale_async() is None:
            raise RuntimeError(
                f"{type(self).__name__}.step: grad_scaler has no scale yet; one that was used is "
                "required. Call grad_scaler.scale(loss) for the backward pass."
            )

    def _scaler_values(
        self, grad_scaler: Any, device: torch.device
    ) -> tuple[torch.Tensor, Callable[[torch.device], torch.Tensor]]:
        """The inverse of the scaler's scale, and what gives the flag of a device."""
        one = torch.ones(1, dtype=torch.float32, device=device)
        if grad_scaler is None or not grad_scaler.is_enabled():
            return one, self._flag
        scaler_state = grad_scaler._per_optimizer_states[id(self)]
        if scaler_state["stage"] is torch.amp.grad_scaler.OptState.UNSCALED:
            inverse, found = one, scaler_state["found_inf_per_device"]
        else:
            scale = grad_scaler._get_scale_async()
            inverse = scale.double().reciprocal().float().reshape(1).to(device)
            found = grad_scaler._check_inf_per_device(self)

        def flag_of(device: torch.device) -> torch.Tensor:
            if device not in found:
                return self._flag(device)
            return (found[device] != 0).to(torch.int32).reshape(1)

        return inverse, flag_of
