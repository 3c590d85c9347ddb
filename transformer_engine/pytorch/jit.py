# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optional torch.compile around small elementwise functions, and switching it off.

Nothing is compiled at import. NVTE_TORCH_COMPILE = 0 never compiles, 1 compiles everywhere; unset,
only calls with a CUDA tensor are compiled: on a CPU the native steps do not use these functions,
and one call would pay seconds of compilation and need a C++ compiler at run time.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from transformer_engine.common.environment import read_text

from .utils import get_device_compute_capability

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SQRT_2_OVER_PI = 0.79788456
_GELU_CUBIC = 0.044715
_WARMUP_ITERATIONS = 5
_COMPILE = read_text("NVTE_TORCH_COMPILE")


def _has_cuda_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    values = (*args, *kwargs.values())
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)


def lazy_compile(function: _Function) -> _Function:
    """Decorate: compile with torch.compile at the first call, call directly while tracing.

    If this machine cannot compile (no C++ compiler, unsupported Python), a RuntimeWarning says
    so once and the function runs uncompiled from then on.
    """
    state: dict[str, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if "compiled" not in state:
            state["compiled"] = torch.compile(function)
            # A caller may be inside torch.jit.trace, which dynamo would refuse.
            torch._dynamo.config.error_on_nested_jit_trace = False
        try:
            return state["compiled"](*args, **kwargs)
        except Exception as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            warnings.warn(
                f"{function.__qualname__}: torch.compile failed ({type(error).__name__}); running "
                "it uncompiled. NVTE_TORCH_COMPILE=0 silences this.",
                RuntimeWarning,
                stacklevel=2,
            )
            state["compiled"] = function
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _compile_where_wanted(function: _Function) -> _Function:
    compiled = lazy_compile(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = _COMPILE == "1" or _has_cuda_tensor(args, kwargs)
        return (compiled if wanted else function)(*args, **kwargs)

    return call  # type: ignore[return-value]


def jit_fuser(function: _Function) -> _Function:
    """Decorate an elementwise function to be fused by torch.compile (see the module's text)."""
    if _COMPILE == "0":
        return function
    return _compile_where_wanted(function)


def dropout_fuser(function: _Function) -> _Function:
    """`jit_fuser` for functions with dropout; NVTE_TORCH_COMPILE = 0 gives torch.jit.script."""
    if _COMPILE != "0":
        return _compile_where_wanted(function)
    state: dict[str, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "scripted" not in state:
            with warnings.catch_warnings():
                # The user chose torch.jit by an environment variable that documents it.
                warnings.simplefilter("ignore", DeprecationWarning)
                state["scripted"] = torch.jit.script(function)
        return state["scripted"](*args, **kwargs)

    return call  # type: ignore[return-value]


def no_torch_dynamo(
    recursive: bool = True, when: Callable[[dict[str, Any]], str | None] | None = None
) -> Callable[[_Function], _Function]:
    """Decorate a function so that torch.compile breaks the graph and runs it as it is.

    An export to ONNX traces it nevertheless: there is no eager part to fall back to.

    Parameters
    ----------
    recursive : bool, default True
        Keep what the function calls uncompiled too.
    when : callable, optional
        ``when(kwargs)`` gives the reason to skip compilation of this call, or None to trace it.
        Default: always skip.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export():
                return function(*args, **kwargs)
            if when is not None and when(kwargs) is None:
                return function(*args, **kwargs)
            # Made here, not at decoration: torch.compiler.disable imports the whole of dynamo.
            disabled = torch.compiler.disable(function, recursive=recursive)
            return disabled(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def set_jit_fusion_options() -> None:
    """Kept for old callers: torch.compile, which does the fusing, has no options to set."""


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(_SQRT_2_OVER_PI * x * (1 + _GELU_CUBIC * x * x)))


def _dgelu(grad_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    tanh = torch.tanh(_SQRT_2_OVER_PI * x * (1 + _GELU_CUBIC * x * x))
    inner_slope = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * x * x)
    return grad_output * (0.5 * x * (1 - tanh * tanh) * inner_slope + 0.5 * (1 + tanh))


@jit_fuser
def gelu_fused_(inp: torch.Tensor) -> torch.Tensor:
    """0.5 x (1 + tanh(0.79788456 x (1 + 0.044715 x^2)))."""
    return _gelu(inp)


@jit_fuser
def bias_gelu_fused_(inp: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu_fused_` of inp + bias."""
    return _gelu(inp + bias)


@jit_fuser
def dgelu_fused_(grad_output: torch.Tensor, inp: torch.Tensor) -> torch.Tensor:
    """grad_output times the derivative of `gelu_fused_` at inp."""
    return _dgelu(grad_output, inp)


@jit_fuser
def bgrad_dgelu_fused_(
    grad_output: torch.Tensor, inp: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of bias, gradient of inp) of `bias_gelu_fused_`, for inp of shape [rows, n]."""
    grad_input = _dgelu(grad_output, inp + bias)
    return grad_input.sum(dim=0), grad_input


def bias_gelu_fused(inp: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Tanh GELU of inp + bias; no bias (None or empty) means none is added."""
    if bias is not None and bias.numel() > 0:
        return bias_gelu_fused_(inp, bias)
    return gelu_fused_(inp)


def bgrad_dgelu_fused(
    grad_output: torch.Tensor, inp: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Backward of `bias_gelu_fused`: (gradient of bias or None, gradient of inp)."""
    if bias is not None and bias.numel() > 0:
        return bgrad_dgelu_fused_(grad_output, inp, bias)
    return None, dgelu_fused_(grad_output, inp)


def _l2normalization(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    x32 = x.float()
    rsqrt_norm = torch.rsqrt(x32.square().sum(dim=-1, keepdim=True) + eps)
    return (x32 * rsqrt_norm).to(x.dtype), rsqrt_norm


@jit_fuser
def l2normalization_fused_(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis, FP32 inside, in the dtype of x."""
    return _l2normalization(x, eps)[0]


@jit_fuser
def l2normalization_fwd_fused_(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(`l2normalization_fused_`, the FP32 reciprocal norms that its backward needs)."""
    return _l2normalization(x, eps)


@jit_fuser
def l2normalization_backward_fused_(
    grad_output: torch.Tensor, x: torch.Tensor, rsqrt_norm: torch.Tensor, eps: float
) -> torch.Tensor:
    """Gradient of x: r g - x r^3 sum(g x), with r the reciprocal norm."""
    x32, grad32 = x.float(), grad_output.float()
    dot = (grad32 * x32).sum(dim=-1, keepdim=True)
    return (grad32 * rsqrt_norm - x32 * rsqrt_norm.pow(3) * dot).to(x.dtype)


def l2normalization_fused(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis."""
    return l2normalization_fused_(x, eps)


def l2normalization_fwd_fused(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(normalized x, FP32 reciprocal norms of shape [..., 1])."""
    return l2normalization_fwd_fused_(x, eps)


def l2normalization_backward_fused(
    grad_output: torch.Tensor, x: torch.Tensor, rsqrt_norm: torch.Tensor, eps: float
) -> torch.Tensor:
    """Gradient of x from the reciprocal norms of `l2normalization_fwd_fused`."""
    return l2normalization_backward_fused_(grad_output, x, rsqrt_norm, eps)


def bias_dropout_add(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float, training: bool
) -> torch.Tensor:
    """residual + dropout(x + bias)."""
    return residual + torch.nn.functional.dropout(x + bias, p=prob, training=training)


@dropout_fuser
def bias_dropout_add_fused_train_(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
) -> torch.Tensor:
    """`bias_dropout_add` in training."""
    return residual + torch.nn.functional.dropout(x + bias, p=prob, training=True)


def bias_dropout_add_fused_train(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
) -> torch.Tensor:
    """`bias_dropout_add` in training, with gradients."""
    with torch.enable_grad():
        return bias_dropout_add_fused_train_(x, bias, residual, prob)


@dropout_fuser
def bias_dropout_add_fused_inference(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
) -> torch.Tensor:
    """`bias_dropout_add` in evaluation: prob has no effect."""
    return residual + torch.nn.functional.dropout(x + bias, p=prob, training=False)


def get_bias_dropout_add(training: bool) -> Callable[..., torch.Tensor]:
    """The unfused function `f(x, bias, residual, prob)` for one mode."""

    def apply(
        x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
    ) -> torch.Tensor:
        return bias_dropout_add(x, bias, residual, prob, training)

    return apply


def _warmup(run: Callable[[torch.device], None]) -> None:
    """Run a function a few times on the device that will train; leave every RNG as it was."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for _ in range(_WARMUP_ITERATIONS):
            run(device)


def _warmup_dtypes() -> tuple[torch.dtype, ...]:
    capability = get_device_compute_capability()
    if capability == (0, 0) or capability >= (8, 0):
        return (torch.float32, torch.float16, torch.bfloat16)
    return (torch.float32, torch.float16)


def warmup_jit_bias_dropout_add(
    hidden_size: int, dtype: torch.dtype, seq_length: int, micro_batch_size: int
) -> None:
    """Compile the bias-dropout-add functions for one shape ahead of time."""
    shape = (seq_length, micro_batch_size, hidden_size)

    def run(device: torch.device) -> None:
        x = torch.rand(shape, dtype=dtype, device=device)
        bias = torch.rand(hidden_size, dtype=dtype, device=device)
        for needs_grad in (True, False):
            inputs = [
                value.detach().requires_grad_(needs_grad) for value in (x, bias.expand(shape), x)
            ]
            bias_dropout_add_fused_train(inputs[0], inputs[1], inputs[2], 0.1)
        bias_dropout_add_fused_inference(x, bias.expand(shape), x, 0.1)

    _warmup(run)


def warmup_jit_bias_dropout_add_all_dtypes(
    hidden_size: int, seq_length: int, micro_batch_size: int
) -> None:
    """`warmup_jit_bias_dropout_add` for every dtype the device can train in."""
    for dtype in _warmup_dtypes():
        warmup_jit_bias_dropout_add(hidden_size, dtype, seq_length, micro_batch_size)


def warmup_jit_bias_gelu(
    ffn_hidden_size_per_partition: int, dtype: torch.dtype, seq_length: int, micro_batch_size: int
) -> None:
    """Compile the GELU functions for one shape ahead of time."""
    shape = (seq_length * micro_batch_size, ffn_hidden_size_per_partition)

    def run(device: torch.device) -> None:
        x = torch.rand(shape, dtype=dtype, device=device)
        bias = torch.rand(shape[-1], dtype=dtype, device=device)
        bias_gelu_fused_(x, bias)
        gelu_fused_(x)
        bgrad_dgelu_fused_(x, x, bias)
        dgelu_fused_(x, x)

    _warmup(run)


def warmup_jit_bias_gelu_all_dtypes(
    ffn_hidden_size: int, seq_length: int, micro_batch_size: int
) -> None:
    """`warmup_jit_bias_gelu` for every dtype the device can train in."""
    for dtype in _warmup_dtypes():
        warmup_jit_bias_gelu(ffn_hidden_size, dtype, seq_length, micro_batch_size)


def warmup_jit_l2normalization(
    hidden_size: int, dtype: torch.dtype, seq_length: int, micro_batch_size: int
) -> None:
    """Compile the L2 normalization functions for one shape ahead of time."""
    shape = (seq_length * micro_batch_size, hidden_size)

    def run(device: torch.device) -> None:
        x = torch.rand(shape, dtype=dtype, device=device)
        _, rsqrt_norm = l2normalization_fwd_fused_(x, 1e-6)
        l2normalization_fused_(x, 1e-6)
        l2normalization_backward_fused_(x, x, rsqrt_norm, 1e-6)

    _warmup(run)


def warmup_jit_l2normalization_all_dtypes(
    hidden_size: int, seq_length: int, micro_batch_size: int
) -> None:
    """`warmup_jit_l2normalization` for every dtype the device can train in."""
    for dtype in _warmup_dtypes():
        warmup_jit_l2normalization(hidden_size, dtype, seq_length, micro_batch_size)
