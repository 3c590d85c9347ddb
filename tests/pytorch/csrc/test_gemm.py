# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""tex.gemm: torch tensors in and out, torch's own operator as a candidate, errors.

Layouts, types, epilogues and instruction sets are tested exhaustively in tests/cpp/ops.
"""

import math
from dataclasses import dataclass

import pytest
import torch

import transformer_engine_torch as tex
from helpers.formats import E4M3, E5M2, FloatFormat, decode_table, encode_reference
from helpers.generators import DTYPES, random_tensor, strided_copy
from helpers.tolerances import (
    ON_TENSOR_CORES,
    assert_identical,
    assert_within,
    gamma,
    matmul_bound,
    rounding_bound,
)

# Values of DType.
FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2 = 4, 5, 6, 7, 8
DTYPE_VALUES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
FP8_FORMATS: dict[int, FloatFormat] = {FLOAT8_E4M3: E4M3, FLOAT8_E5M2: E5M2}
LAYOUTS = [(False, False), (False, True), (True, True), (True, False)]
SHAPES = [(1, 33, 70), (3, 16, 65), (31, 47, 130)]
LARGE = (521, 1031, 509)  # enough work for torch's BF16 GEMM to be chosen, and nothing is round


@dataclass(frozen=True, slots=True)
class Operand:
    """A [rows, k] operand: what the kernel gets and what it stands for."""

    stored: torch.Tensor  # [rows, k], or [k, rows] when transposed
    values: torch.Tensor  # float64 [rows, k], without scale_inv


def store(values: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    """The storage of op(X) [rows, k] under a layout flag."""
    return values.t().contiguous() if is_transposed else values.contiguous()


def high_precision_operand(
    rows: int, k: int, dtype: torch.dtype, *, is_transposed: bool = False, seed: int = 0
) -> Operand:
    values = random_tensor((rows, k), dtype=dtype, seed=seed)
    return Operand(store(values, is_transposed), values.double())


def fp8_operand(
    rows: int, k: int, dtype: int, *, is_transposed: bool = False, seed: int = 0
) -> Operand:
    fmt = FP8_FORMATS[dtype]
    codes = encode_reference(random_tensor((rows, k), dtype=torch.float64, seed=seed) * 8, fmt)
    return Operand(store(codes, is_transposed), decode_table(fmt)[codes.long()])


def gelu64(x: torch.Tensor) -> torch.Tensor:
    """The tanh form of GELU, in float64."""
    return x * (0.5 + 0.5 * torch.tanh(x * (0.79788456 + 0.03567741 * x * x)))


def gelu_bound(x: torch.Tensor, x_error: torch.Tensor, output: torch.dtype) -> torch.Tensor:
    """Error of GELU of values known to within x_error: its slope is below 1.13, and it takes some
    16 float32 operations of magnitude |x| or less."""
    error = 1.13 * x_error + gamma(16, torch.float32) * x.abs()
    return error + rounding_bound(gelu64(x).abs() + error, output)


@pytest.mark.smoke
@pytest.mark.parametrize("output", DTYPES, ids=str)
@pytest.mark.parametrize("b_dtype", FP8_FORMATS)
@pytest.mark.parametrize("a_dtype", FP8_FORMATS)
def test_fp8_matches_float64(a_dtype: int, b_dtype: int, output: torch.dtype) -> None:
    scales = torch.tensor([0.37]), torch.tensor([0.011])
    for m, n, k in SHAPES:
        for a_transposed, b_transposed in LAYOUTS:
            a = fp8_operand(m, k, a_dtype, is_transposed=a_transposed, seed=1)
            b = fp8_operand(n, k, b_dtype, is_transposed=b_transposed, seed=2)
            d, pre = tex.gemm(
                a.stored,
                b.stored,
                a_transposed=a_transposed,
                b_transposed=b_transposed,
                a_dtype=a_dtype,
                b_dtype=b_dtype,
                a_scale_inv=scales[0],
                b_scale_inv=scales[1],
                out_dtype=DTYPE_VALUES[output],
            )
            assert pre is None and d.dtype == output
            a_wide, b_wide = a.values * scales[0].double(), b.values * scales[1].double()
            # Two roundings more: alpha and the product with it.
            bound = matmul_bound(a_wide, b_wide.t(), output=output, extra_terms=2, is_fp8=True)
            assert_within(d, a_wide @ b_wide.t(), bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_candidate_matches_float64_in_every_layout(dtype: torch.dtype) -> None:
    for m, n, k in [*SHAPES, *([LARGE] if dtype == torch.bfloat16 else [])]:
        for a_transposed, b_transposed in LAYOUTS:
            a = high_precision_operand(m, k, dtype, is_transposed=a_transposed, seed=1)
            b = high_precision_operand(n, k, dtype, is_transposed=b_transposed, seed=2)
            bias = random_tensor((n,), dtype=dtype, seed=3)
            layout = {"a_transposed": a_transposed, "b_transposed": b_transposed}
            expected = a.values @ b.values.t()
            bound = matmul_bound(a.values, b.values.t(), output=dtype, extra_terms=1)
            wide_bias = bias.double()
            bias_bound = (
                bound + gamma(1, torch.float32) * wide_bias.abs() + rounding_bound(wide_bias, dtype)
            )
            for name, refusal in tex.gemm_candidates(a.stored, b.stored, bias=bias, **layout):
                if refusal is not None or (m > 500 and name == "reference"):
                    continue
                d, _ = tex.gemm(a.stored, b.stored, candidate=name, **layout)
                assert_within(d, expected, bound, name)
                d, _ = tex.gemm(a.stored, b.stored, bias=bias, candidate=name, **layout)
                assert_within(d, expected + wide_bias, bias_bound, f"{name} with bias")


def test_bias_gelu_and_pre_gelu() -> None:
    for output in DTYPES:
        for bias_dtype in DTYPES:
            a = high_precision_operand(9, 40, torch.bfloat16, seed=1)
            b = high_precision_operand(21, 40, torch.bfloat16, seed=2)
            bias = random_tensor((21,), dtype=bias_dtype, seed=3)
            d, pre = tex.gemm(
                a.stored,
                b.stored,
                bias=bias,
                gelu=True,
                with_pre_gelu=True,
                out_dtype=DTYPE_VALUES[output],
            )
            exact = a.values @ b.values.t() + bias.double()
            sum_error = matmul_bound(a.values, b.values.t(), output=torch.float32, extra_terms=1)
            sum_error = sum_error + gamma(1, torch.float32) * bias.double().abs()
            assert_within(pre, exact, sum_error + rounding_bound(exact.abs() + sum_error, output))
            # The hardware's tanh, which may be used, has a relative error of 2^-11.
            gelu_error = sum_error + (2.0**-12 * exact.abs() if ON_TENSOR_CORES else 0.0)
            assert_within(d, gelu64(exact), gelu_bound(exact, gelu_error, output))
            without_pre, nothing = tex.gemm(
                a.stored, b.stored, bias=bias, gelu=True, out_dtype=DTYPE_VALUES[output]
            )
            assert nothing is None
            if ON_TENSOR_CORES:  # another algorithm, or another GELU
                assert_within(without_pre, gelu64(exact), gelu_bound(exact, gelu_error, output))
            else:
                assert_identical(without_pre, d)


def test_weight_gradients_accumulate_in_float32() -> None:
    a = high_precision_operand(33, 64, torch.bfloat16, is_transposed=True, seed=1)
    b = high_precision_operand(50, 64, torch.bfloat16, is_transposed=True, seed=2)
    main_grad = torch.full((33, 50), 1024.0)
    expected = main_grad.double()
    bound = torch.zeros_like(expected)
    product = a.values @ b.values.t()
    for _ in range(4):
        d, _ = tex.gemm(
            a.stored,
            b.stored,
            a_transposed=True,
            b_transposed=True,
            out=main_grad,
            accumulate=True,
        )
        assert d is main_grad or d.data_ptr() == main_grad.data_ptr()
        expected = expected + product
        bound = bound + matmul_bound(a.values, b.values.t(), output=torch.float32)
        bound = bound + rounding_bound(expected, torch.float32)
    assert_within(main_grad, expected, bound)


@pytest.mark.skipif(ON_TENSOR_CORES, reason="of the CPU's implementations")
@pytest.mark.parametrize("candidate", ["cpu framework", "cpu packed"])
def test_bfloat16_accumulates_into_bfloat16(candidate: str) -> None:
    m, n, k = LARGE
    a = high_precision_operand(m, k, torch.bfloat16, seed=1)
    b = high_precision_operand(n, k, torch.bfloat16, seed=2)
    out = random_tensor((m, n), dtype=torch.bfloat16, seed=3)
    before = out.double()
    tex.gemm(a.stored, b.stored, out=out, accumulate=True, candidate=candidate)
    exact = a.values @ b.values.t() + before
    bound = matmul_bound(a.values, b.values.t(), output=torch.float32, extra_terms=1)
    bound = bound + gamma(1, torch.float32) * before.abs()
    assert_within(out, exact, bound + rounding_bound(exact.abs() + bound, torch.bfloat16))


@pytest.mark.parametrize("m_dims", [(2, 3, 5), (2, 260)], ids=["packed", "framework"])
def test_leading_dimensions_of_a_are_kept(m_dims: tuple[int, ...]) -> None:
    m = math.prod(m_dims)
    a = random_tensor((*m_dims, 509), dtype=torch.bfloat16, seed=1)
    b = random_tensor((1031, 509), dtype=torch.bfloat16, seed=2)
    d, _ = tex.gemm(a, b)
    assert d.shape == (*m_dims, 1031)
    assert_identical(d.reshape(m, 1031), tex.gemm(a.reshape(m, 509), b)[0])


def test_operands_need_not_be_contiguous() -> None:
    a = random_tensor((7, 24), seed=1)
    b = random_tensor((9, 24), seed=2)
    bias = random_tensor((9,), seed=3)
    expected, _ = tex.gemm(a, b, bias=bias)
    actual, _ = tex.gemm(strided_copy(a), strided_copy(b), bias=strided_copy(bias))
    assert_identical(actual, expected)


def test_leaf_that_requires_grad_is_taken_as_it_is() -> None:
    m, n, k = LARGE
    a = random_tensor((m, k), dtype=torch.bfloat16, seed=1)
    weight = torch.nn.Parameter(random_tensor((n, k), dtype=torch.bfloat16, seed=2))
    assert chosen(a, weight) == "cpu framework"
    d, _ = tex.gemm(a, weight)
    assert not d.requires_grad
    assert_identical(d, tex.gemm(a, weight.detach())[0])


def test_empty_sizes() -> None:
    for m, n, k in ((0, 4, 8), (4, 0, 8), (4, 5, 0), (40, 50, 0)):
        for dtype in DTYPES:
            bias = random_tensor((n,), dtype=dtype)
            d, _ = tex.gemm(torch.ones(m, k, dtype=dtype), torch.ones(n, k, dtype=dtype), bias=bias)
            assert_identical(d, bias.expand(m, n).contiguous())


def test_torch_float8_dtypes_need_no_dtype_argument() -> None:
    a = random_tensor((6, 32), seed=1).to(torch.float8_e4m3fn)
    b = random_tensor((10, 32), seed=2).to(torch.float8_e5m2)
    as_bytes = [x.view(torch.uint8) for x in (a, b)]
    d, _ = tex.gemm(a, b)
    assert d.dtype == torch.bfloat16
    assert_identical(d, tex.gemm(*as_bytes, a_dtype=FLOAT8_E4M3, b_dtype=FLOAT8_E5M2)[0])


def chosen(a: torch.Tensor, b: torch.Tensor, **arguments: object) -> str:
    taken = [name for name, refusal in tex.gemm_candidates(a, b, **arguments) if refusal is None]
    return taken[0]


@pytest.mark.skipif(ON_TENSOR_CORES, reason="of the CPU's implementations")
def test_choice_of_the_candidate_is_visible() -> None:
    def matrix(rows: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(rows, 64, dtype=dtype)

    assert chosen(matrix(16, torch.bfloat16), matrix(32, torch.bfloat16)) == "cpu skinny"
    large = torch.ones(1024, 1024, dtype=torch.bfloat16)
    assert chosen(large, large) == "cpu framework"
    assert chosen(large, large, gelu=True) == "cpu packed"
    assert chosen(matrix(64, torch.float16), matrix(32, torch.float16)) == "cpu packed"
    refusals = dict(tex.gemm_candidates(matrix(64, torch.float32), matrix(32, torch.float32)))
    assert refusals["cpu skinny"] == "a has more than 16 rows"
    no_cuda = ("this build has no CUDA backend", "the tensors are not in device memory")
    assert refusals["cuda"] in no_cuda
    assert refusals["reference"] is None


BYTES = torch.zeros(8, 8, dtype=torch.uint8)
FLOATS = torch.zeros(8, 8)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "gemm: a has dtype byte; float32", {"a": BYTES}),
        (TypeError, "gemm: a_dtype is float8_e4m3 and a has torch dtype Float", {"a_dtype": 7}),
        (TypeError, "gemm: out_dtype is 7; a value of DType", {"out_dtype": 7}),
        (
            TypeError,
            "gemm: out has dtype Float and out_dtype is BFloat16",
            {"out": torch.zeros(8, 8), "out_dtype": 6},
        ),
        (ValueError, "gemm: a has 0 and b 2 dimensions", {"a": torch.tensor(1.0)}),
        (ValueError, "gemm: a has k = 8 and b k = 5", {"b": torch.zeros(8, 5)}),
        (ValueError, "gemm: d has shape [7, 8]; [8, 8]", {"out": torch.zeros(7, 8)}),
        (ValueError, "has strides [1, 8]; a contiguous tensor", {"out": torch.zeros(8, 8).t()}),
        (ValueError, "gemm: bias has shape [1, 3]; [1, 8]", {"bias": torch.zeros(3)}),
        (ValueError, "gemm: accumulate is set without out", {"accumulate": True}),
        (
            ValueError,
            "gemm: accumulate is set together with bias",
            {"accumulate": True, "out": torch.zeros(8, 8), "bias": torch.zeros(8)},
        ),
        (
            ValueError,
            "gemm: a_scale_inv has shape [2]; one element",
            {"a": BYTES, "a_dtype": 7, "b": BYTES, "b_dtype": 7, "a_scale_inv": torch.ones(2)},
        ),
        (
            TypeError,
            "gemm: b_scale_inv has dtype Double; float32",
            {"b_scale_inv": torch.ones(1, dtype=torch.float64)},
        ),
        (ValueError, "gemm: d shares memory with a", {"out": FLOATS}),
        (ValueError, "gemm: candidate is 'best'; a name from", {"candidate": "best"}),
        (
            NotImplementedError,
            "gemm: cpu skinny refuses this problem: a and b must be stored with k contiguous",
            {"a_transposed": True, "candidate": "cpu skinny"},
        ),
        (NotImplementedError, "cuda refuses this problem", {"candidate": "cuda"}),
    ],
)
def test_errors(error: type[Exception], text: str, arguments: dict[str, object]) -> None:
    with pytest.raises(error) as caught:
        tex.gemm(**{"a": FLOATS, "b": torch.zeros(8, 8), **arguments})
    assert text in str(caught.value)
