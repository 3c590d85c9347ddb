# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every module shares: parameters and their initialisation, recipe state, checkpoint state.

A module's forward runs natively (`StepModule` in csrc/step_module.h); Python is entered once to
build the step, when the recipe changes, and for hooks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from transformer_engine.common.recipe import Recipe

from ..arguments import received, tensor_parallel_size
from ..cpp_extensions import state, steps
from ..quantization import FP8GlobalStateManager, register_states
from ..recipe_state import (
    SLOTS_PER_GEMM,
    TENSOR_TYPES,
    DelayedScalingRecipeState,
    QuantizerRole,
    RecipeState,
    fp8_max_of,
    native_recipe,
)
from ..tensor import Float8Quantizer, QuantizedTensor
from . import compiled, extra_state
from .arguments import check_name
from .fast_call import FastCallModule
from .parameter_init import InitMethod, ParameterInit, default_init, keep_init_value
from .pending_amaxes import with_pending_amaxes
from .sharding import WeightShard
from .userbuffers import (
    UserBufferQuantizationMode,
    destroy_ub,
    initialize_ub,
    is_ub_initialized,
    using_cublasmp_backend,
)

__all__ = [
    "TransformerEngineBaseModule",
    "UserBufferQuantizationMode",
    "destroy_ub",
    "get_dummy_wgrad",
    "initialize_ub",
    "is_ub_initialized",
    "resolve_device",
    "using_cublasmp_backend",
]

# Keys of the forward and the backward state in fp8_meta and quantizers.
STATE_KEYS = ("scaling_fwd", "scaling_bwd")
_WEIGHT_SLOTS = slice(TENSOR_TYPES["forward"].index("weight"), None, SLOTS_PER_GEMM["forward"])

_dummy_wgrads: dict[tuple[tuple[int, ...], torch.dtype, torch.device], torch.Tensor] = {}


def get_dummy_wgrad(
    shape: Iterable[int], dtype: torch.dtype, zero: bool = False, device: Any = None
) -> torch.Tensor:
    """A cached placeholder gradient for a weight whose gradient went into ``main_grad``.

    Parameters
    ----------
    shape, dtype
        Of the weight.
    zero : bool, default False
        Fill it with zeros.
    device : torch.device, optional
        CUDA when available, else the CPU, when None.

    Returns
    -------
    torch.Tensor
        Detached; the same storage for equal arguments. Its values mean nothing unless `zero`.
    """
    key = (tuple(shape), dtype, resolve_device(device or "cuda"))
    dummy = _dummy_wgrads.get(key)
    if dummy is None:
        dummy = torch.empty(key[0], dtype=dtype, device=key[2], requires_grad=False)
        _dummy_wgrads[key] = dummy
    if zero:
        dummy.fill_(0)
    return dummy.detach()


def resolve_device(device: torch.device | str | None, owner: str = "device") -> torch.device:
    """The device that `owner` is built on.

    The constructors' default "cuda" means: the device of a surrounding ``torch.device`` context
    if there is one, else CUDA when it is available, else the CPU. Any other value is taken as is.

    Raises
    ------
    TypeError, ValueError
        For what names no device.
    """
    if device is not None and str(device) != "cuda":
        try:
            return torch.device(device)
        except (TypeError, RuntimeError) as error:
            is_text = isinstance(error, RuntimeError)  # torch: of the right type, but no device
            raise (ValueError if is_text else TypeError)(
                f"{owner}: device is {received(device)}; a torch.device or the name of one is "
                "required. Pass 'cpu', 'cuda', 'cuda:0' or 'meta'."
            ) from None
    default = torch.get_default_device()
    if default.type != "cpu":
        return default
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass(frozen=True)
class WgradStore:
    """What frameworks ask of the weight gradients that a module left for `backward_dw`."""

    is_enabled: bool
    count: int  # of backwards whose weight gradients wait

    def delay_wgrad_compute(self) -> bool:
        """Whether backward leaves weight gradients for later."""
        return self.is_enabled

    def __len__(self) -> int:
        return self.count


class TransformerEngineBaseModule(steps.StepModule, FastCallModule):
    """Base of all modules with a native step.

    Parameters
    ----------
    name : str, optional
        For messages and debugging; ``Layer_<n>`` when None.
    """

    # Attributes the step is made from: assigning one drops the step.
    _step_attributes: ClassVar[frozenset[str]] = frozenset()
    _module_count: ClassVar[int] = 0
    num_gemms: ClassVar[int] = 1
    # Whether these products are of an input and weights, as numerics_report measures them.
    has_linear_layers: ClassVar[bool] = True
    # Of the GEMMs, for the names of roles; a single one has the module's name.
    _gemm_names: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        check_name(type(self).__name__, "name", name)
        if name is None:
            name = f"Layer_{TransformerEngineBaseModule._module_count}"
            TransformerEngineBaseModule._module_count += 1
        self.name = name
        self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {
            "fp8_checkpoint": False,
            "fp8_group": None,
            "num_gemms": self.num_gemms,
        }
        self.quantizers: dict[str, list[Any]] = {"scaling_fwd": [], "scaling_bwd": []}
        self.tp_group: Any = None
        self.tp_size = 1
        self.parallel_mode: str | None = None
        self.sequence_parallel = False
        self.primary_weights_in_fp8 = FP8GlobalStateManager.with_fp8_parameters()
        self.preserve_high_precision_init_val = FP8GlobalStateManager.with_high_precision_init_val()
        # Parameters on the meta device are quantized later, outside the region that asked for it.
        self._parameters_recipe: Recipe | None = (
            FP8GlobalStateManager.quantization_state.parameters_recipe
            if self.primary_weights_in_fp8
            else None
        )
        self.param_init_meta: dict[str, ParameterInit] = {}
        self.fsdp_group: Any = None
        self.wgrad_accumulation_and_reduce_hooks: list[Callable[[], Any]] = []
        self._consumer_roles: dict[str, Any] = {}
        self.delay_wgrad_compute = False
        self._quantizer_set: Any = None
        object.__setattr__(self, "_handle", compiled.new_handle(self))

    # ---- attributes --------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        # Plain values skip nn.Module's search for parameters, buffers and modules; what the step
        # was made from drops it.
        if name in self._step_attributes and self._step is not None:
            # The next one inherits from it what forwards left for later.
            object.__setattr__(self, "_previous_step", self._step)
            self._step = None
        if isinstance(value, (torch.Tensor, torch.nn.Module)) or self._is_registered(name):
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def _is_registered(self, name: str) -> bool:
        fields = self.__dict__
        return (
            name in fields.get("_parameters", ())
            or name in fields.get("_buffers", ())
            or name in fields.get("_modules", ())
        )

    def __getstate__(self) -> dict[str, Any]:
        # Native objects are rebuilt on the next forward from the buffers in fp8_meta.
        state = super().__getstate__()
        state["_quantizer_set"] = None
        # A shallow copy shares the scales, as it does buffers, but has a recipe of its own.
        state["fp8_meta"] = dict(self.fp8_meta)
        state.pop("_previous_step", None)
        state.pop("_handle", None)
        state["quantizers"] = {"scaling_fwd": [], "scaling_bwd": []}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "_handle", compiled.new_handle(self))

    @property
    def fp8(self) -> bool:
        """Whether the latest forward was quantized."""
        step = self._latest_step()
        return step is not None and bool(step.was_quantized)

    @property
    def fp8_calibration(self) -> bool:
        """Whether the latest forward observed amaxes in high precision."""
        step = self._latest_step()
        return step is not None and bool(step.was_calibrating)

    @property
    def activation_dtype(self) -> torch.dtype | None:
        """dtype of the latest forward's activations: torch.autocast's, else the input's."""
        step = self._latest_step()
        return None if step is None else step.activation_dtype

    @property
    def wgrad_store(self) -> WgradStore:
        """The weight gradients that wait for `backward_dw`."""
        step = self._latest_step()
        return WgradStore(
            bool(self.delay_wgrad_compute), 0 if step is None else step.delayed_wgrad_count
        )

    def _latest_step(self) -> Any:
        """The step of the latest forward, which a changed attribute may have put aside."""
        return self._step or self.__dict__.get("_previous_step")

    # ---- step and quantizers -----------------------------------------------------------------

    def _make_step(self) -> Any:
        """The native step for the attributes as they are now."""
        step = self._build_step()
        previous = self.__dict__.pop("_previous_step", None)
        if previous is not None:
            step.inherit(previous)
        if self._quantizer_set is not None:
            step.set_quantizers(self._quantizer_set)
        return step

    def _build_step(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}._build_step: no native step is defined.")

    def _make_quantizers(self, recipe: Recipe) -> None:
        """Quantizers and buffers for a recipe; delayed-scaling buffers survive a rebuild."""
        old_recipe = self.fp8_meta.get("recipe")
        if old_recipe is not None and not (
            isinstance(recipe, type(old_recipe)) or isinstance(old_recipe, type(recipe))
        ):
            warnings.warn(
                f"Recipe type changed from {type(old_recipe).__name__} to "
                f"{type(recipe).__name__} in {self.name}; quantizers are rebuilt.",
                UserWarning,
                stacklevel=2,
            )
        self._check_parameter_formats(recipe)
        device = self._parameter_device()
        state_recipe = self._state_recipe(recipe)
        states = {}
        for mode, key in zip(SLOTS_PER_GEMM, STATE_KEYS, strict=True):
            state = RecipeState.create(
                state_recipe,
                mode=mode,
                num_quantizers=self.num_gemms * SLOTS_PER_GEMM[mode],
                device=device,
                roles=self.get_quantizer_roles(mode),
            )
            state.inherit_state_from(self.fp8_meta.get(key))
            states[key] = state
        self._adopt_states(recipe, states)
        self._use_loaded_buffers()

    def _state_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe of the module's quantizers in a region with `recipe`."""
        return recipe

    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole | None]:
        """What each quantizer slot of a direction is for, as custom recipes are asked for it.

        The module's output and the gradient of its input are the consumers' affair: None unless
        ``output_quantizer_role`` or ``grad_input_quantizer_role`` says what they want.

        Parameters
        ----------
        mode : {"forward", "backward"}
        """
        roles: list[QuantizerRole | None] = []
        for gemm in self._gemm_names:
            name = f"{self.name}.{gemm}" if gemm else self.name
            for tensor_type in TENSOR_TYPES[mode]:
                is_boundary = tensor_type in ("output", "grad_input")
                role = QuantizerRole("linear", tensor_type, name)
                roles.append(None if is_boundary else role)
        # The output is the last GEMM's, the gradient of the input the first one's.
        slot = {"forward": len(roles) - 1, "backward": 1}[mode]
        roles[slot] = self._consumer_roles.get(TENSOR_TYPES[mode][-1])
        return roles

    def _set_consumer_role(self, tensor_type: str, role: QuantizerRole | None) -> None:
        if role is not None and not isinstance(role, QuantizerRole):
            raise TypeError(
                f"{type(self).__name__}: {tensor_type}_quantizer_role is a {type(role).__name__}; "
                "a QuantizerRole or None is required."
            )
        self._consumer_roles[tensor_type] = role
        if self._quantizer_set is not None:
            self._make_quantizers(self.fp8_meta["recipe"])

    @property
    def output_quantizer_role(self) -> QuantizerRole | None:
        """What the consumer of the output wants; assigning it rebuilds the quantizers."""
        return self._consumer_roles.get("output")

    @output_quantizer_role.setter
    def output_quantizer_role(self, role: QuantizerRole | None) -> None:
        self._set_consumer_role("output", role)

    @property
    def grad_input_quantizer_role(self) -> QuantizerRole | None:
        """The same for the gradient of the input."""
        return self._consumer_roles.get("grad_input")

    @grad_input_quantizer_role.setter
    def grad_input_quantizer_role(self, role: QuantizerRole | None) -> None:
        self._set_consumer_role("grad_input", role)

    def _accept_quantizers(self, quantizers: dict[str, list[Any]]) -> None:
        """Refuse, before anything has changed, those that the module has no use for."""

    def _adopt_states(self, recipe: Recipe, states: dict[str, RecipeState]) -> None:
        quantizers = {key: state.make_quantizers() for key, state in states.items()}
        self._accept_quantizers(quantizers)
        self.fp8_meta.update(states)
        self.fp8_meta["recipe"] = recipe
        self.fp8_meta["fp8_max_fwd"] = fp8_max_of(recipe, fprop_tensor=True)
        self.fp8_meta["fp8_max_bwd"] = fp8_max_of(recipe, fprop_tensor=False)
        self.quantizers = quantizers
        self._connect_parameters()
        self._quantizer_set = steps.QuantizerSet(
            native_recipe(recipe),
            [quantizer.native for quantizer in self.quantizers["scaling_fwd"]],
            [quantizer.native for quantizer in self.quantizers["scaling_bwd"]],
            states["scaling_fwd"].native,
            states["scaling_bwd"].native,
        )
        register_states(self.fp8_meta)
        self.fp8_initialized = True
        self.fp8_meta["fp8_checkpoint"] = True
        if self._step is not None:
            self._step.set_quantizers(self._quantizer_set)

    def _connect_parameters(self) -> None:
        """Quantizers of parameters observe into the buffers in force, which may be new ones."""
        for name, how in self.param_init_meta.items():
            parameter = self._parameters.get(name)
            if how.fp8_meta_index is None or not isinstance(parameter, QuantizedTensor):
                continue
            own, slot = parameter._quantizer, self.quantizers["scaling_fwd"][how.fp8_meta_index]
            if own is None:  # unpickled
                parameter._quantizer = slot.copy()
                parameter._quantizer.internal = False
            elif isinstance(own, Float8Quantizer) and isinstance(slot, Float8Quantizer):
                own.scale, own.amax = slot.scale, slot.amax

    def _check_parameter_formats(self, recipe: Recipe) -> None:
        for name, parameter in self._parameters.items():
            if isinstance(parameter, QuantizedTensor):
                quantizer = parameter._quantizer
                if quantizer is not None and not quantizer.fits_recipe(recipe):
                    raise RuntimeError(
                        f"Recipe mismatch for '{name}' of {self.name}: the parameter is a "
                        f"{type(parameter).__name__}; recipe {type(recipe).__name__} needs "
                        "another format. Use the recipe of quantized_model_init."
                    )

    def _parameter_device(self) -> torch.device:
        for parameter in self._parameters.values():
            if parameter is not None and parameter.device.type != "meta":
                return parameter.device
        return resolve_device("cuda")

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Make quantizers for the region in force; nothing outside one."""
        del num_gemms  # fixed by the class
        region = state.autocast_state()
        if region.enabled or region.calibrating:
            recipe = FP8GlobalStateManager.get_fp8_recipe()
            if self._quantizer_set is None or self.fp8_meta.get("recipe") != recipe:
                self._make_quantizers(recipe)

    def adjust_amax_history_length(self, length: int, fwd: bool | None = None) -> None:
        """Change the length of the delayed-scaling histories, keeping the newest maxima.

        Parameters
        ----------
        length : int
            At least 1.
        fwd : bool, optional
            Only the forward (True) or backward (False) history; both when None.
        """
        if length < 1:
            raise ValueError(
                f"{type(self).__name__}.adjust_amax_history_length: length is {length}; "
                "at least 1 is required."
            )
        keys = {None: ("scaling_fwd", "scaling_bwd"), True: ("scaling_fwd",)}.get(
            fwd, ("scaling_bwd",)
        )
        states = self._delayed_states()
        if states is None:
            return
        for key in set(keys) & set(states):
            states[key].set_history_length(length)
        self._adopt_states(self.fp8_meta["recipe"], {key: self.fp8_meta[key] for key in STATE_KEYS})

    def _delayed_states(self) -> dict[str, DelayedScalingRecipeState] | None:
        """The delayed-scaling states (custom recipes may have one), or None without any."""
        states = {key: self.fp8_meta.get(key) for key in STATE_KEYS}
        delayed = {
            key: state.delayed
            for key, state in states.items()
            if state is not None and state.delayed is not None
        }
        return delayed or None

    def get_fp8_meta_tensors(self) -> dict[str, list[torch.Tensor]] | None:
        """Copies of the delayed-scaling buffers, or None without any."""
        states = self._delayed_states()
        if states is None:
            return None
        return {
            key: [state.scale.clone(), state.amax_history.clone()] for key, state in states.items()
        }

    def reset_fp8_meta_tensors(
        self, fp8_meta_tensors: dict[str, list[torch.Tensor]] | None = None
    ) -> None:
        """Put copies of `get_fp8_meta_tensors` back, or fresh values (scale 1, history 0)."""
        for key, buffers in (self._delayed_states() or {}).items():
            if fp8_meta_tensors is None:
                buffers.scale.fill_(1)
                buffers.amax_history.zero_()
            else:
                scale, history = fp8_meta_tensors[key]
                buffers.scale.copy_(scale)
                buffers.amax_history.copy_(history)

    # ---- parameters --------------------------------------------------------------------------

    def register_parameter(
        self,
        name: str,
        param: torch.nn.Parameter | None,
        *,
        init_fn: InitMethod | None = None,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        fp8_meta_index: int | None = None,
        shard: WeightShard | None = None,
    ) -> None:
        """Register a parameter and how `reset_parameters` fills it (N(0, 0.023) when not said)."""
        super().register_parameter(name, param)
        if "param_init_meta" in self.__dict__ and name not in self.param_init_meta:
            self.param_init_meta[name] = ParameterInit(
                init_fn=init_fn or default_init,
                get_rng_state_tracker=get_rng_state_tracker,
                rng_tracker_name=rng_tracker_name,
                fp8_meta_index=fp8_meta_index,
                shard=shard,
            )

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Draw all parameters anew.

        A parameter on the meta device gets memory: on CUDA when available, else on the CPU; its
        attributes move to the new parameter. Others keep their identity, dtype and device.

        Parameters
        ----------
        defer_init : bool, default False
            Do nothing; the caller will call again.
        """
        if defer_init:
            return
        for name, how in self.param_init_meta.items():
            parameter = self._parameters.get(name)
            if parameter is not None:
                self._reset_parameter(name, parameter, how)

    def _reset_parameter(
        self, name: str, parameter: torch.nn.Parameter, how: ParameterInit
    ) -> None:
        quantizes = (
            self.primary_weights_in_fp8
            and how.fp8_meta_index is not None
            and not isinstance(parameter, QuantizedTensor)
        )
        is_meta = parameter.device.type == "meta"
        values: torch.Tensor = parameter
        if is_meta:
            values = torch.empty_like(parameter, device=_real_device())
        elif isinstance(parameter, QuantizedTensor):
            values = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        keeps = self.preserve_high_precision_init_val and (
            quantizes or isinstance(parameter, QuantizedTensor)
        )
        is_drawn = True
        if keeps:
            is_drawn = how.fill_if_drawn(values)
        else:
            how.fill(values)
        if isinstance(parameter, QuantizedTensor) and not is_meta:
            with torch.no_grad():
                parameter.copy_(values)
        elif is_meta or quantizes:
            parameter = self._install_parameter(name, parameter, values, how if quantizes else None)
        if keeps:
            keep_init_value(parameter, values.detach().cpu().clone() if is_drawn else None)

    def _install_parameter(
        self,
        name: str,
        old: torch.nn.Parameter,
        values: torch.Tensor,
        how: ParameterInit | None,
    ) -> torch.nn.Parameter:
        """Replace a parameter by new values, quantized when `how` is given; attributes survive."""
        attributes = dict(old.__dict__)
        requires_grad = old.requires_grad
        if how is not None:
            quantized = self._quantize_parameter(values.detach(), how)
            new = torch.nn.Parameter(quantized, requires_grad=requires_grad)
        else:
            new = torch.nn.Parameter(values.detach(), requires_grad=requires_grad)
        for key, value in attributes.items():
            if key not in new.__dict__:
                setattr(new, key, value)
        self._parameters[name] = new
        return new

    def _quantize_parameter(self, values: torch.Tensor, how: ParameterInit) -> torch.Tensor:
        recipe = (
            self._parameters_recipe
            or self.fp8_meta.get("recipe")
            or FP8GlobalStateManager.get_fp8_recipe()
        )
        if self._quantizer_set is None:
            self._make_quantizers(recipe)
        assert how.fp8_meta_index is not None
        quantizer = self.quantizers["scaling_fwd"][how.fp8_meta_index].copy()
        quantizer.internal = False
        quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
        return quantizer(values)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # A moved quantized parameter is a new object: what users hung on it moves along.
        attributes = {
            name: dict(parameter.__dict__)
            for name, parameter in self._parameters.items()
            if isinstance(parameter, QuantizedTensor)
        }
        result = super()._apply(fn, recurse)
        for name, values in attributes.items():
            parameter = self._parameters[name]
            for key, value in values.items():
                if parameter is not None and key not in parameter.__dict__:
                    rebound = getattr(value, "__func__", None)
                    setattr(parameter, key, rebound.__get__(parameter) if rebound else value)
        return result

    # ---- parallelism -------------------------------------------------------------------------

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Give the group when ``tp_size`` was given without one, or another one.

        Parameters
        ----------
        tp_group : torch.distributed.ProcessGroup or None
            Of ``tp_size`` ranks.

        Raises
        ------
        TypeError
            For no process group.
        ValueError
            For another number of ranks.
        """
        owner = f"{type(self).__name__}.set_tensor_parallel_group"
        if tp_group is not None:
            ranks = tensor_parallel_size(owner, self.tp_size, tp_group)
            if ranks != self.tp_size:
                raise ValueError(
                    f"{owner}: tp_group has {ranks} ranks; {self.tp_size} are required, the "
                    "tp_size that the parameters were made for."
                )
        self.tp_group = tp_group

    # ---- delayed weight gradients ------------------------------------------------------------

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Callable[[], Any]) -> None:
        """Call `hook` at the end of every `backward_dw`."""
        self.wgrad_accumulation_and_reduce_hooks.append(hook)

    def need_backward_dw(self) -> bool:
        """Whether weight gradients wait for `backward_dw`."""
        return bool(self.delay_wgrad_compute)

    def backward_dw(self) -> None:
        """Run the oldest delayed weight gradient and assign (not add) it to ``weight.grad``.

        Nothing happens unless ``delay_wgrad_compute=True``.

        Raises
        ------
        RuntimeError
            If no backward is waiting.
        """
        if not self.need_backward_dw():
            return
        for weight, gradient in self._run_delayed_wgrads():
            if gradient is not None:
                weight.grad = gradient
        self._trigger_wgrad_accumulation_and_reduce_hooks()

    def _run_delayed_wgrads(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """(weight, gradient) of the oldest backward that left them; None went to main_grad."""
        step = self._latest_step()
        if step is None:
            raise RuntimeError(
                f"{type(self).__name__}.backward_dw: no forward has run; run forward and backward "
                "once for each backward_dw."
            )
        with torch.no_grad():
            return list(step.run_delayed_wgrads())

    def _trigger_wgrad_accumulation_and_reduce_hooks(self) -> None:
        """Call the registered hooks; frameworks with a `backward_dw` of their own do this."""
        for hook in self.wgrad_accumulation_and_reduce_hooks:
            hook()

    # ---- checkpoint state --------------------------------------------------------------------

    def get_extra_state(self) -> torch.Tensor:
        """The delayed-scaling state as a uint8 CPU tensor, or an empty one without such a state.

        Its size is that of the recipe and the module, from the first region on; see
        module/extra_state.py. Where fully_shard divides quantized weights, all ranks must call it.
        """
        states = self._delayed_states()
        if states is None:
            return extra_state.encode(self.fp8_meta.get("loaded_buffers"))
        none = (torch.empty(0), torch.empty(1, 0))
        forward, backward = (
            (states[key].scale, states[key].amax_history) if key in states else none
            for key in STATE_KEYS
        )
        if STATE_KEYS[0] in states:
            owner = f"{type(self).__name__}.get_extra_state"
            history = with_pending_amaxes(
                owner, self._parameters.values(), forward[1], _WEIGHT_SLOTS
            )
            forward = (forward[0], history)
        return extra_state.encode(extra_state.DelayedScalingBuffers(*forward, *backward))

    def set_extra_state(self, state: Any) -> None:
        """Restore a recipe state; None, or one without delayed scaling, means a fresh one.

        Delayed-scaling buffers wait for the first forward under that recipe; under another recipe
        they are not used.

        Parameters
        ----------
        state : torch.Tensor, io.BytesIO or None
            uint8, from `get_extra_state`; or a pickled state of an older release, whose recipe is
            not used and of which nothing is executed.

        Raises
        ------
        ValueError
            For a state that cannot be read or belongs to another module; nothing is changed.
        TypeError
            For another kind of object. Both are RuntimeErrors too.
        """
        owner = f"{type(self).__name__}.set_extra_state"
        buffers = extra_state.decode(state, owner)
        if buffers is None:
            self._forget_recipe_state()
            return
        # A custom recipe may have a state in one direction alone.
        is_one_sided = (buffers.scale_fwd.numel() == 0) != (buffers.scale_bwd.numel() == 0)
        for mode, scale in (("forward", buffers.scale_fwd), ("backward", buffers.scale_bwd)):
            expected = self.num_gemms * SLOTS_PER_GEMM[mode]
            if scale.numel() != expected and not (is_one_sided and scale.numel() == 0):
                raise extra_state.ExtraStateError(
                    f"{owner}: {mode} state has {scale.numel()} slots; {expected} are required. "
                    "Load the checkpoint of a module of this kind."
                )
        self.fp8_meta["loaded_buffers"] = buffers
        self._use_loaded_buffers()

    def _forget_recipe_state(self) -> None:
        self.reset_fp8_meta_tensors()
        self.fp8_meta["loaded_buffers"] = None

    def _use_loaded_buffers(self) -> None:
        """Copy loaded buffers into the states in force, if those are delayed scaling."""
        loaded = self.fp8_meta.get("loaded_buffers")
        states = self._delayed_states()
        if loaded is None or states is None:
            return
        for key, scale, history in (
            (STATE_KEYS[0], loaded.scale_fwd, loaded.amax_history_fwd),
            (STATE_KEYS[1], loaded.scale_bwd, loaded.amax_history_bwd),
        ):
            buffers = states.get(key)
            if buffers is None or scale.numel() == 0:
                continue
            buffers.scale.copy_(scale)
            resized = buffers.resize_history(history, buffers.amax_history.shape[0])
            buffers.amax_history.copy_(resized)
        self.fp8_meta["loaded_buffers"] = None

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + "_extra_state"
        # First: casts below need the scale and are observed, and a state that is refused changes
        # no parameter.
        arguments = (prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if key in state_dict and self.num_gemms > 0:
            self.set_extra_state(state_dict[key])
            own = state_dict.pop(key)  # torch would set it once more, after the casts
            try:
                super()._load_from_state_dict(state_dict, *arguments)
            finally:
                state_dict[key] = own
        else:
            if any(name.startswith(prefix) for name in state_dict):
                self._forget_recipe_state()  # weights of a plain module
            super()._load_from_state_dict(state_dict, *arguments)
        if key in missing_keys:
            missing_keys.remove(key)
        if key in unexpected_keys:  # of a norm, from another release: nothing to restore
            unexpected_keys.remove(key)


def _real_device() -> torch.device:
    """Where meta parameters are materialised."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
