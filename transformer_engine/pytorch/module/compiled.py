# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules under torch.compile: one operator for a forward, one for its backward.

``transformer_engine::module_forward`` runs the module's native step, so that a compiled model gives
the numbers of an eager one. It reads the recipe region when it runs: one graph serves BF16 and all
recipes. The autograd node that the step records travels to
``transformer_engine::module_backward`` inside a tensor (`steps.hold_object`), and with it all that
the backward needs.

The module itself is named by a number in a tensor: a graph input, so that layers built alike share
one compiled graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.utils import stateless

from ..cpp_extensions import state, steps
from ..tensor import QuantizedTensor
from . import composed

__all__ = [
    "is_composed",
    "new_handle",
    "refuse_gathered_norm_output",
    "refuse_quantized_results",
    "run",
]

_numbers = itertools.count(1)
_modules: WeakValueDictionary[int, torch.nn.Module] = WeakValueDictionary()
_HOLDER_WORDS = 2  # of the result of hold_object


def new_handle(module: torch.nn.Module) -> Tensor:
    """An int64 tensor [1] that names this module inside graphs as long as it lives."""
    number = next(_numbers)
    _modules[number] = module
    return torch.tensor([number], device="cpu")


def is_composed() -> bool:
    """Whether a traced forward takes torch's operators: exports, and function transforms inside."""
    return torch.compiler.is_exporting() or torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def run(
    module: Any,
    inp: Tensor,
    names: Sequence[str],
    *,
    out_shape: Sequence[int],
    dtype: torch.dtype | None = None,
    is_first_microbatch: bool | None = None,
    with_layernorm_output: bool = False,
) -> tuple[Tensor, Tensor]:
    """The module's step as one operator, while torch.compile traces.

    Parameters
    ----------
    names : sequence of str
        The parameters that gradients flow to.
    out_shape : sequence of int
        Of the output.
    dtype : torch.dtype, optional
        Of the output; the autocast dtype or else the input's when None.

    Returns
    -------
    (output, the norm's output or an empty tensor)

    Raises
    ------
    NotImplementedError
        For quantized tensors, computed parameters, and weight gradients that bypass autograd.
    """
    for name in names:
        if name not in module._parameters:
            raise NotImplementedError(
                f"{type(module).__name__}.forward: {name} is computed (parametrized) under "
                "torch.compile; a parameter is required. Exclude the module with "
                "torch.compiler.disable."
            )
    parameters = [module._parameters[name] for name in names]
    _refuse(module, [inp, *parameters])
    composed.refuse_weight_gradient_options(module, parameters)
    wants = torch.is_grad_enabled()
    output, layernorm_output, _ = module_forward(
        module._handle,
        inp,
        parameters,
        " ".join(names),
        [wants and tensor.requires_grad for tensor in (inp, *parameters)],
        list(out_shape),
        composed.amp_dtype(inp) or dtype or inp.dtype,
        composed.amp_dtype(inp),
        is_first_microbatch,
        with_layernorm_output,
    )
    return output, layernorm_output


def refuse_quantized_results(module: Any, **flags: bool) -> None:
    """NotImplementedError for a flag that asks for a quantized result."""
    for name, value in flags.items():
        if value:
            raise NotImplementedError(
                f"{type(module).__name__}.forward: {name} is True under torch.compile; graphs pass "
                "plain tensors. Leave it False, or exclude the call with torch.compiler.disable."
            )


def refuse_gathered_norm_output(module: Any) -> None:
    """NotImplementedError where the norm's output would come back with all ranks' rows."""
    is_gathered = module.return_layernorm_output and module.return_layernorm_output_gathered
    if is_gathered and module.sequence_parallel:
        raise NotImplementedError(
            f"{type(module).__name__}.forward: return_layernorm_output_gathered is True under "
            "torch.compile; exclude the module with torch.compiler.disable."
        )


def _refuse(module: Any, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if isinstance(tensor, QuantizedTensor):
            raise NotImplementedError(
                f"{type(module).__name__}.forward: a {type(tensor).__name__} under torch.compile; "
                "plain inputs and parameters are required. Build the module outside "
                "quantized_model_init, or exclude it with torch.compiler.disable."
            )


def _is_alias(mine: Tensor, given: Tensor) -> bool:
    """Whether both read the same memory in the same way."""
    return (
        mine.data_ptr() == given.data_ptr()
        and mine.shape == given.shape
        and mine.stride() == given.stride()
        and mine.dtype == given.dtype
        and mine.is_neg() == given.is_neg()
    )


@contextmanager
def _with_parameters(module: Any, names: Sequence[str], tensors: Sequence[Tensor]) -> Iterator[Any]:
    """The module with these tensors as parameters; untouched where they are its own."""
    own = [module._parameters[name] for name in names]
    if all(_is_alias(mine, given) for mine, given in zip(own, tensors, strict=True)):
        yield own
        return
    given = [
        tensor.detach().requires_grad_(mine.requires_grad)
        for mine, tensor in zip(own, tensors, strict=True)
    ]
    replaced = dict(zip(names, given, strict=True))
    with stateless._reparametrize_module(module, replaced):
        yield given


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _SavedMemory:
    """What a node saves, in memory of its own.

    A graph knows nothing of what hides in a holder: it may reuse the memory of an argument or of a
    result for something else before the backward runs.
    """

    def __init__(self, foreign: Sequence[Tensor]) -> None:
        self._foreign = {_address(tensor) for tensor in foreign}
        self._saved: set[int] = set()

    def pack(self, tensor: Tensor) -> Tensor:
        """Keep a tensor for the backward."""
        kept = tensor.clone() if _address(tensor) in self._foreign else tensor
        self._saved.add(_address(kept))
        return kept

    def result(self, tensor: Tensor) -> Tensor:
        """A result of the operator: detached, and none of what was kept."""
        tensor = tensor.detach()
        return tensor.clone() if _address(tensor) in self._saved else tensor


def _refuse_recomputation(module: Any) -> None:
    """Inside a backward a forward is a repetition, which needs the region of the first run."""
    is_in_backward = torch._C._current_graph_task_id() != -1
    if not is_in_backward or not module.fp8:
        return
    if state.autocast_state().enabled and module._delayed_states() is None:
        return  # the region is still open, and the recipe has no scales of its own
    raise NotImplementedError(
        f"{type(module).__name__}.forward: activations of a quantized forward are recomputed in a "
        "compiled function; the region and the scales of the first run are unknown there. Put "
        "the checkpoint around the compiled function; with a recipe without delayed scaling it is "
        "enough to call backward inside the region."
    )


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


@torch.library.custom_op("transformer_engine::module_forward", mutates_args=())
def module_forward(  # noqa: PLR0913  # an operator takes no structures
    handle: Tensor,
    inp: Tensor,
    parameters: Sequence[Tensor],
    names: str,
    requires_grad: Sequence[bool],
    out_shape: Sequence[int],
    dtype: torch.dtype,
    amp_dtype: torch.dtype | None,
    is_first_microbatch: bool | None,
    with_layernorm_output: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, norm's output or [0], holder of (their edges, differentiated tensors) or [0])."""
    module: Any = _modules[int(handle)]
    _refuse_recomputation(module)
    flags = {} if is_first_microbatch is None else {"is_first_microbatch": is_first_microbatch}
    with (
        torch.set_grad_enabled(any(requires_grad)),
        torch.autocast(inp.device.type, dtype=amp_dtype, enabled=amp_dtype is not None),
        _with_parameters(module, names.split(), parameters) as used,
    ):
        source = inp.detach().requires_grad_(requires_grad[0])
        own = {_address(parameter) for parameter in module.parameters()}
        saved = _SavedMemory([inp, *(p for p in parameters if _address(p) not in own)])
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, _unpack):
            result = steps.call_above_autograd(lambda: module._run_step(source, **flags))
    results = result if isinstance(result, tuple) else (result,)
    output = results[0]
    layernorm_output = results[-1] if with_layernorm_output else inp.new_empty(0)
    if not any(requires_grad):
        return output, layernorm_output, torch.empty(0, dtype=torch.int64)
    wanted = [t for t, flag in zip((source, *used), requires_grad, strict=True) if flag]
    # Hooks of the user's parameters run where the graph's gradients reach them, not in here.
    leaves = steps.call_above_autograd(lambda: steps.detach_edges(output, wanted))
    outputs = (output, layernorm_output) if with_layernorm_output else (output,)
    edges = [torch.autograd.graph.get_gradient_edge(tensor) for tensor in outputs]
    holder = steps.hold_object((edges, leaves))
    return saved.result(output), saved.result(layernorm_output), holder


@module_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, inp, _, _, requires_grad, out_shape, dtype, _, _, with_layernorm_output = arguments
    words = _HOLDER_WORDS if any(requires_grad) else 0
    norm_shape = inp.shape if with_layernorm_output else (0,)
    norm_dtype = dtype if with_layernorm_output else inp.dtype
    return (
        inp.new_empty(out_shape, dtype=dtype),
        inp.new_empty(norm_shape, dtype=norm_dtype),
        torch.empty(words, dtype=torch.int64, device="cpu"),
    )


@torch.library.custom_op("transformer_engine::module_backward", mutates_args=())
def module_backward(
    holder: Tensor,
    gradients: Sequence[Tensor],
    parameters: Sequence[Tensor],
    requires_grad: Sequence[bool],
    inp_shape: Sequence[int],
    inp_dtype: torch.dtype,
) -> list[Tensor]:
    """Gradients of those of (inp, *parameters) that require one."""
    edges, leaves = steps.held_object(holder)
    found = torch.autograd.grad(edges, leaves, gradients, retain_graph=True)
    # An operator's results may share memory neither with its arguments nor with each other.
    taken = {_address(tensor) for tensor in (*gradients, *parameters)}
    results = []
    for gradient in found:
        results.append(gradient.clone() if _address(gradient) in taken else gradient)
        taken.add(_address(gradient))
    return results


@module_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    _, gradients, parameters, requires_grad, inp_shape, inp_dtype = arguments
    wanted = zip(parameters, requires_grad[1:], strict=True)
    results = [torch.empty_like(parameter) for parameter, is_wanted in wanted if is_wanted]
    if requires_grad[0]:
        results.insert(0, gradients[0].new_empty(inp_shape, dtype=inp_dtype))
    return results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, inp, parameters, _, requires_grad, _, _, _, _, with_layernorm_output = inputs
    # The parameters for their shapes, and so that writing to one before the backward is an error.
    ctx.save_for_backward(output[2], *parameters)
    ctx.wanted = requires_grad
    ctx.with_layernorm_output = with_layernorm_output
    ctx.inp_shape, ctx.inp_dtype = inp.shape, inp.dtype


def _backward(
    ctx: Any, grad: Tensor, grad_layernorm_output: Tensor, _grad_holder: Tensor | None
) -> tuple[Any, ...]:
    holder, *parameters = ctx.saved_tensors
    gradients = [grad, grad_layernorm_output] if ctx.with_layernorm_output else [grad]
    found = iter(
        module_backward(holder, gradients, parameters, ctx.wanted, ctx.inp_shape, ctx.inp_dtype)
    )
    first, *rest = [next(found) if wanted else None for wanted in ctx.wanted]
    return None, first, rest, None, None, None, None, None, None, None


module_forward.register_autograd(_backward, setup_context=_setup_context)
