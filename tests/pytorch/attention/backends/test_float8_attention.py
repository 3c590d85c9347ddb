# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Float8Attention: its arguments, that it declines host memory, and, on a GPU or where the emulated
library is loaded with its stand-in for cuDNN, its numbers against the formulas in FP64.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.attention_module import cumulative
from helpers.formats import E4M3, E5M2, FloatFormat
from helpers.generators import random_tensor
from helpers.tolerances import (
    ON_TENSOR_CORES,
    assert_identical,
    assert_within,
    gamma,
    rounding_bound,
    tensor_core_error,
)
from transformer_engine.pytorch import DType
from transformer_engine.pytorch.cpp_extensions.attention import Float8Attention

TORCH_DTYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
SCALE = 0.09


def is_emulated() -> bool:
    return hasattr(ctypes.CDLL(None), "cuda_emulator_fast_products")


needs_emulated_device = pytest.mark.skipif(
    not is_emulated(), reason="needs the emulated device (make test-cuda-emulated)"
)


needs_device = pytest.mark.skipif(
    not is_emulated() and not (ON_TENSOR_CORES and torch.cuda.get_device_capability() >= (9, 0)),
    reason="needs a GPU of sm_90 or later, or the emulated device (make test-cuda-emulated)",
)


def encode(x: Tensor, fmt: FloatFormat) -> Tensor:
    """Codes of the nearest numbers, saturating."""
    return x.float().clamp(-fmt.max_value, fmt.max_value).to(TORCH_DTYPES[fmt]).view(torch.uint8)


def decode(codes: Tensor, fmt: FloatFormat) -> Tensor:
    return codes.view(TORCH_DTYPES[fmt]).double()


def rounded(x: Tensor, fmt: FloatFormat) -> Tensor:
    return decode(encode(x, fmt), fmt)


def number(value: float) -> Tensor:
    """A scale that lies at no multiple of 16 bytes, as those of a recipe's state do."""
    return torch.tensor([0.0, value])[1:]


@dataclass
class Case:
    """A problem of one head size; heads 4, groups 2."""

    format: str = "bshd"
    causal: bool = False
    lengths: tuple[int, int] | None = None
    is_strided: bool = False
    s: int = 6
    d: int = 128

    def native(self, **options: Any) -> Float8Attention:
        arguments = {
            "qkv_format": self.format,
            "scale": SCALE,
            "left": -1,
            "right": 0 if self.causal else -1,
            "is_bottom_right": False,
            "has_lengths": self.lengths is not None,
            "is_deterministic": False,
            "dtype": DType.kFloat8E4M3,
            "out_dtype": DType.kFloat8E4M3,
            "saved_out_dtype": DType.kFloat8E4M3,
            "grad_out_dtype": DType.kFloat8E5M2,
            "grad_dtype": DType.kFloat8E5M2,
        }
        return Float8Attention(**(arguments | options))

    def codes(self, heads: int, seed: int, fmt: FloatFormat = E4M3) -> Tensor:
        """[2, s, heads, d] or [s, 2, heads, d]"""
        shape = (2, self.s) if self.format == "bshd" else (self.s, 2)
        size = self.d + 16 if self.is_strided else self.d
        x = encode(60 * random_tensor((*shape, heads, size), dtype=torch.float32, seed=seed), fmt)
        return x[..., : self.d]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes(4, 1), self.codes(2, 2), self.codes(2, 3)

    def cu(self) -> Tensor | None:
        return None if self.lengths is None else cumulative(list(self.lengths)).to(torch.int32)

    def bhsd(self, x: Tensor) -> Tensor:
        return x.permute(*((0, 2, 1, 3) if self.format == "bshd" else (1, 2, 0, 3)))

    def visible(self) -> Tensor:
        """[2, 1, s, s]"""
        positions = torch.arange(self.s)
        mask = torch.ones(2, 1, self.s, self.s, dtype=torch.bool)
        if self.causal:
            mask &= positions[:, None] >= positions
        if self.lengths is not None:
            inside = positions < torch.tensor(self.lengths)[:, None]
            mask &= inside[:, None, :, None] & inside[:, None, None, :]
        return mask


CASES = [
    Case(),
    Case(format="sbhd", causal=True),
    Case(causal=True, lengths=(6, 3)),
    Case(format="sbhd", lengths=(2, 6)),
    Case(causal=True, is_strided=True),
]
# On tensor cores, scores are small: the bound of what their sums lose grows with them.
DESCALES = {
    "q": 0.002 if ON_TENSOR_CORES else 0.031,
    "k": 0.047,
    "v": 0.013,
    "s": 1 / 448,
    "o": 1 / 37,
    "do": 0.0021,
}
SCALE_S, SCALE_O, SCALE_DP, SCALE_GRADS = 448.0, 37.0, 300.0, (1900.0, 2300.0, 1700.0)


def forward_arguments(case: Case) -> list[Any]:
    descales = [number(DESCALES[name]) for name in ("q", "k", "v")]
    scales = [number(SCALE_S), number(DESCALES["s"]), number(SCALE_O)]
    return [*case.inputs(), case.cu(), case.cu(), *descales, *scales, True]


def backward_arguments(case: Case, o: Tensor, grad_o: Tensor, statistics: Tensor) -> list[Any]:
    forward = forward_arguments(case)
    middle = [number(DESCALES["o"]), number(DESCALES["do"])]
    scales = [number(SCALE_DP), number(1 / SCALE_DP), *map(number, SCALE_GRADS)]
    return [*forward[:3], o, grad_o, statistics, *forward[3:8], *middle, *forward[8:10], *scales]


def float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def sum_error(magnitudes: Tensor, terms: int) -> Tensor:
    """What a sum of products of codes loses, in FP64 or on tensor cores with FP32 around them."""
    if ON_TENSOR_CORES:
        return tensor_core_error(magnitudes, terms) + gamma(terms + 8, torch.float32) * magnitudes
    return gamma(terms + 8, torch.float64) * magnitudes


def code_error(x: Tensor, error: Tensor, scale: float, fmt: FloatFormat) -> Tensor:
    """How far two numbers are that were rounded to codes, of `x` and of what is off by `error`.

    Where the sums before are those of FP64 they are the same code, for these seeds.
    """
    if not ON_TENSOR_CORES:
        return torch.zeros_like(x)
    return error + 2 * rounding_bound((x.abs() + error) * scale, fmt) / scale


@dataclass
class Bounded:
    """Exact numbers and how far others may be."""

    exact: Tensor
    error: Tensor


class Exact:
    """The formulas in FP64, [b, h, s, d]; P and dS are rounded to codes."""

    def __init__(self, case: Case, statistics: Tensor | None = None) -> None:
        self.case = case
        self.d = {name: float32(value) for name, value in DESCALES.items()}
        q, k, v = (decode(case.bhsd(x).contiguous(), E4M3) for x in case.inputs())
        self.q, self.k, self.v = q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        factor = float32(SCALE) * self.d["q"] * self.d["k"]
        hidden = ~case.visible()
        scores = (factor * (self.q @ self.k.mT)).masked_fill(hidden, -torch.inf)
        off = sum_error(factor * (self.q.abs() @ self.k.abs().mT), case.d)
        off = off.masked_fill(hidden, 0.0).amax(-1, keepdim=True)
        exact = scores.logsumexp(-1, keepdim=True)
        self.statistics = Bounded(exact, off + exact.abs() * 2.0**-23)
        log_sum = exact if statistics is None else statistics.double()
        p = torch.exp(scores - log_sum).masked_fill(hidden, 0.0)
        self.p = Bounded(p, p * torch.expm1(2 * off + gamma(8, torch.float32)))
        self.p8 = Bounded(
            rounded(p * SCALE_S, E4M3) * self.d["s"], code_error(p, self.p.error, SCALE_S, E4M3)
        )
        self.o = self.product(self.p8, self.v, "v")

    def product(self, codes: Bounded, x: Tensor, name: str) -> Bounded:
        """Of codes with their descale, by those of a tensor."""
        d = self.d[name]
        magnitudes = d * (codes.exact.abs() @ x.abs())
        lost = sum_error(magnitudes, x.shape[-2]) + d * (codes.error @ x.abs())
        return Bounded(d * (codes.exact @ x), lost)

    def scores_gradient(self, o8: Tensor, do8: Tensor) -> Bounded:
        """dS."""
        d, p = self.d, self.p
        delta = d["do"] * d["o"] * (do8 * o8).sum(-1, keepdim=True)
        delta_off = (
            d["do"] * d["o"] * sum_error((do8 * o8).abs().sum(-1, keepdim=True), o8.shape[-1])
        )
        dp = d["do"] * d["v"] * (do8 @ self.v.mT)
        dp_off = d["do"] * d["v"] * sum_error(do8.abs() @ self.v.abs().mT, o8.shape[-1])
        factor = float32(SCALE)
        off = (p.exact + p.error) * (dp_off + delta_off) + p.error * (dp - delta).abs()
        return Bounded(factor * p.exact * (dp - delta), factor * off)

    def gradients(self, o: Tensor, grad_o: Tensor) -> list[Bounded]:
        """dQ, dK, dV and dS; `o` and `grad_o` are codes."""
        o8 = decode(self.case.bhsd(o).contiguous(), E4M3)
        do8 = decode(self.case.bhsd(grad_o).contiguous(), E5M2)
        ds = self.scores_gradient(o8, do8)
        ds8 = Bounded(
            rounded(ds.exact * SCALE_DP, E5M2) * float32(1 / SCALE_DP),
            code_error(ds.exact, ds.error, SCALE_DP, E5M2),
        )
        dq = self.product(ds8, self.k, "k")
        dk = self.product(Bounded(ds8.exact.mT, ds8.error.mT), self.q, "q")
        dv = self.product(Bounded(self.p8.exact.mT, self.p8.error.mT), do8, "do")
        return [dq, of_groups(dk), of_groups(dv), ds]


def of_groups(x: Bounded) -> Bounded:
    """Summed over the heads of a group."""
    return Bounded(*(part.unflatten(1, (2, 2)).sum(2) for part in (x.exact, x.error)))


def assert_stored(codes: Tensor, want: Bounded, scale: float, fmt: FloatFormat, case: Case) -> None:
    """The codes are of the nearest numbers."""
    target = (want.exact * scale).clamp(-fmt.max_value, fmt.max_value)
    off = want.error * scale + target.abs() * 2.0**-23
    got = decode(case.bhsd(codes).contiguous(), fmt)
    assert_within(got, target, off + rounding_bound(target.abs() + off, fmt), "codes")


def assert_amax(amax: Tensor, want: Bounded) -> None:
    assert amax.shape == (1,) and amax.dtype == torch.float32
    largest = want.exact.abs().amax().reshape(1)
    assert_within(amax, largest, want.error.amax() + largest * 2.0**-23, "amax")


@needs_device
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward_match_the_formulas(case):
    native = case.native()
    result = native.forward(*forward_arguments(case))
    assert result is not None, native.reason
    assert native.reason == ""
    o, statistics, amax_s, amax_o = result
    exact = Exact(case)
    assert o.dtype == torch.uint8 and o.shape == case.inputs()[0].shape and o.is_contiguous()
    assert statistics.shape == (2, 4, case.s, 1) and statistics.dtype == torch.float32
    rows = exact.statistics.exact.isfinite()
    assert_within(
        statistics[rows], exact.statistics.exact[rows], exact.statistics.error[rows], "statistics"
    )
    assert_stored(o, exact.o, SCALE_O, E4M3, case)
    assert_amax(amax_s, exact.p)
    assert_amax(amax_o, exact.o)
    grad_o = case.codes(4, 4, E5M2)
    gradients = native.backward(*backward_arguments(case, o, grad_o, statistics))
    assert gradients is not None, native.reason
    *expected, ds = Exact(case, statistics).gradients(o, grad_o)
    for got, amax, want, scale in zip(
        gradients[:3], gradients[3:6], expected, SCALE_GRADS, strict=True
    ):
        assert got.dtype == torch.uint8 and got.is_contiguous()
        assert_stored(got, want, scale, E5M2, case)
        assert_amax(amax, want)
    assert_amax(gradients[6], ds)


@needs_emulated_device
def test_forwards_alone_have_no_statistics():
    case = Case(d=64)
    arguments = forward_arguments(case)
    assert case.native().forward(*arguments) is None  # sm_90 trains with heads of 128 alone
    arguments[-1] = False
    result = case.native().forward(*arguments)
    assert result is not None and result[1] is None
    assert_stored(result[0], Exact(case).o, SCALE_O, E4M3, case)


@needs_emulated_device
def test_what_cannot_be_read_in_place_is_copied():
    case = Case()
    arguments = forward_arguments(case)
    plain = case.native().forward(*arguments)
    q, k = arguments[:2]
    arguments[0] = q.mT.contiguous().mT
    arguments[1] = torch.zeros(k.numel() + 3, dtype=torch.uint8)[3:].view(k.shape).copy_(k)
    native = case.native()
    copied = native.forward(*arguments)
    assert copied is not None, native.reason
    for got, expected in zip(copied, plain, strict=True):
        assert_identical(got, expected)


@needs_emulated_device
def test_a_refusal_has_a_reason_and_leaves_nothing():
    case = Case()
    native = case.native(out_dtype=DType.kBFloat16)
    arguments = forward_arguments(case)
    arguments[10] = None  # 16 bits have no scale
    assert native.forward(*arguments) is None
    assert "O of FP8 attention is bfloat16 from sm_100" in native.reason
    sizes = {"batch": 2, "heads": 4, "groups": 2, "queries": 6, "keys": 6}
    sizes |= {"size_qk": 128, "size_v": 128}
    assert "bfloat16" in native.refusal(sizes, 0, True)
    assert case.native().refusal(sizes, 0, True) is None
    assert "128 alone" in case.native().refusal(sizes | {"size_v": 64}, 0, True)
    assert "equal ones" in case.native().refusal(sizes | {"size_v": 64}, 0, False)


@pytest.mark.skipif(is_emulated() or ON_TENSOR_CORES, reason="tensors are in device memory here")
def test_host_memory_is_declined():
    case = Case()
    native = case.native()
    assert native.forward(*forward_arguments(case)) is None
    assert "not in device memory" in native.reason
    x = case.inputs()[0]
    statistics = torch.zeros(2, 4, 6, 1)
    assert native.backward(*backward_arguments(case, x, x, statistics)) is None
    assert "attention_fp8_backward: no implementation" in native.reason


def test_empty_tensors_are_declined():
    case = Case(s=0)
    native = case.native()
    assert native.forward(*forward_arguments(case)) is None
    assert native.reason == "a tensor is empty"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"qkv_format": "thd"}, ValueError, "qkv_format is 'thd'; sbhd or bshd"),
        ({"dtype": DType.kBFloat16}, TypeError, "dtype is bfloat16"),
        ({"out_dtype": DType.kFloat32}, TypeError, "types.o is float32"),
        ({"grad_out_dtype": DType.kFloat16}, TypeError, "types.grad_o is float16"),
        ({"scale": float("inf")}, ValueError, "scale is inf"),
    ],
)
def test_constructor_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        Case().native(**options)


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, torch.zeros(2, 6, 4, 128), TypeError, "q has dtype Float; Byte is required"),
        (1, torch.zeros(2, 6, 256, dtype=torch.uint8), ValueError, "k has shape"),
        (1, torch.zeros(2, 6, 2, 64, dtype=torch.uint8), ValueError, "heads of one size"),
        (2, torch.zeros(2, 5, 2, 128, dtype=torch.uint8), ValueError, "q, k and v have shapes"),
        (3, torch.zeros(4, dtype=torch.int32), ValueError, "3 elements"),
        (5, None, ValueError, "descale_q is None"),
        (6, torch.ones(2), ValueError, r"descale_k has dtype Float, shape \[2\]"),
        (8, torch.ones(1).double(), ValueError, "scale_s has dtype Double"),
        (10, None, ValueError, "scale_o is None"),
    ],
)
def test_forward_arguments_are_checked(index, value, error, message):
    case = Case()
    arguments = forward_arguments(case)
    arguments[index] = value
    with pytest.raises(error, match=message):
        case.native().forward(*arguments)


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (3, torch.zeros(2, 6, 4, 128), TypeError, "o has dtype Float"),
        (4, torch.zeros(2, 6, 4, 64, dtype=torch.uint8), ValueError, "grad_o has shape"),
        (5, None, ValueError, "statistics are missing"),
        (5, torch.zeros(2, 4, 6), ValueError, "statistics has shape"),
        (11, None, ValueError, "descale_o is None"),
        (16, None, ValueError, "descale_dp is None"),
        (19, None, ValueError, "scale_dv is None"),
    ],
)
def test_backward_arguments_are_checked(index, value, error, message):
    case = Case()
    x = case.inputs()[0]
    arguments = backward_arguments(case, x, x, torch.zeros(2, 4, 6, 1))
    arguments[index] = value
    with pytest.raises(error, match=message):
        case.native().backward(*arguments)


def test_missing_lengths_and_arguments_are_named():
    case = Case(lengths=(6, 3))
    arguments = forward_arguments(case)
    arguments[4] = None
    with pytest.raises(ValueError, match="lengths are missing"):
        case.native().forward(*arguments)
    with pytest.raises(TypeError, match=r"forward\(\) takes 12 arguments but 2 were given"):
        case.native().forward(*arguments[:2])
    other = replace(case, lengths=None)
    mixed = forward_arguments(other)
    mixed[1] = mixed[1][:1]
    mixed[2] = mixed[2][:1]
    with pytest.raises(ValueError, match="q has 2 sequences and k 1"):
        other.native().forward(*mixed)
