# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions on lists of tensors: float64 formulas, exact rules, refusals, write counts."""

from __future__ import annotations

import pytest
import torch

import transformer_engine_torch as tex
from helpers.formats import E4M3, encode_reference
from helpers.generators import DTYPES, random_tensor, special_values
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound

CHUNK = 65536
SHAPES = ((3, 5), (0,), (), (1, 7, 11), (129,))
INF = float("inf")


def flag() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32)


def tensors(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    return [random_tensor(shape, dtype=dtype, seed=seed + i) for i, shape in enumerate(SHAPES)]


# ---- scale and norm


@pytest.mark.parametrize("output", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_rounds_the_product_once(dtype: torch.dtype, output: torch.dtype) -> None:
    inputs = tensors(dtype)
    for scale in (0.37, torch.tensor([0.37]), torch.tensor(0.37)):
        outputs = [torch.full_like(x, 9, dtype=output) for x in inputs]
        noop = flag()
        function = (
            tex.multi_tensor_scale if isinstance(scale, float) else tex.multi_tensor_scale_tensor
        )
        assert function(CHUNK, noop, [inputs, outputs], scale) is None
        factor = torch.tensor(0.37, dtype=torch.float32)
        for x, y in zip(inputs, outputs, strict=True):
            assert_identical(y, (x.float() * factor).to(output))
        assert noop.item() == 0


def test_scale_in_place_and_as_a_copy() -> None:
    inputs = tensors(torch.bfloat16)
    expected = [x * 2 for x in inputs]
    tex.multi_tensor_scale(CHUNK, flag(), [inputs, inputs], 2.0)
    for x, y in zip(inputs, expected, strict=True):
        assert_identical(x, y)
    special = special_values()
    copy = torch.empty_like(special)
    tex.multi_tensor_scale(CHUNK, flag(), [[special], [copy]], 1.0)
    assert_identical(copy, special)


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_flag_says_that_something_is_not_finite(dtype: torch.dtype, bad: float) -> None:
    inputs = tensors(dtype)
    for function, arguments in (
        (tex.multi_tensor_scale, ([inputs, inputs], 1.0)),
        (tex.multi_tensor_scale_tensor, ([inputs, inputs], torch.ones(1))),
        (tex.multi_tensor_l2norm, ([inputs], True)),
        (tex.multi_tensor_unscale_l2norm, ([inputs], torch.ones(1), False)),
    ):
        inputs[-1][-1] = 1.0
        noop = flag()
        function(CHUNK, noop, *arguments)
        assert noop.item() == 0
        inputs[-1][-1] = bad
        function(CHUNK, noop, *arguments)
        assert noop.item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inv_scale", [None, 0.3])
def test_norms_are_those_of_float64(inv_scale: float | None, dtype: torch.dtype) -> None:
    inputs = [*tensors(dtype), random_tensor((70000,), dtype=dtype, seed=9)]
    if inv_scale is None:
        norm, norms = tex.multi_tensor_l2norm(CHUNK, flag(), [inputs], True)
        alone, none = tex.multi_tensor_l2norm(CHUNK, flag(), [inputs])
    else:
        factor = torch.tensor([inv_scale])
        norm, norms = tex.multi_tensor_unscale_l2norm(CHUNK, flag(), [inputs], factor, True)
        alone, none = tex.multi_tensor_unscale_l2norm(CHUNK, flag(), [inputs], factor)
    assert norm.shape == (1,) and norms.shape == (len(inputs),) and none.shape == (0,)
    assert_identical(alone, norm)
    factor64 = 1.0 if inv_scale is None else torch.tensor(inv_scale).double()
    exact = torch.stack([(x.double() * factor64).norm() for x in inputs])
    # Any order of the sum; halved by the root.
    longest = max(x.numel() for x in inputs)
    relative = gamma(longest + len(inputs) + 4, torch.float32)
    assert_within(norms, exact, relative * exact)
    assert_within(norm[0], exact.norm(), relative * exact.norm())


def test_the_norm_of_nothing_is_zero() -> None:
    for lists in ([[]], [[torch.empty(0)]]):
        norm, norms = tex.multi_tensor_l2norm(CHUNK, flag(), lists, True)
        assert norm.item() == 0 and norms.tolist() == [0.0] * len(lists[0])


# ---- optimizer steps

STEP = {"lr": 0.1, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6, "step": 3}


def adam_lists(dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    """Gradients, params and moments."""
    squares = [x.square() for x in tensors(seed=40)]
    return [tensors(dtype, 10), tensors(dtype, 20), tensors(seed=30), squares]


def clones(lists: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [[x.clone() for x in one] for one in lists]


def exact_adam(
    lists: list[list[torch.Tensor]], mode: int, weight_decay: float
) -> list[torch.Tensor]:
    """The parameters after a step, in float64."""
    results = []
    for g, p, m, v in zip(*lists, strict=True):
        g, p, m, v = g.double(), p.double(), m.double(), v.double()
        g = g + weight_decay * p if mode == 0 else g
        m = STEP["beta1"] * m + (1 - STEP["beta1"]) * g
        v = STEP["beta2"] * v + (1 - STEP["beta2"]) * g * g
        m = m / (1 - STEP["beta1"] ** STEP["step"])
        v = v / (1 - STEP["beta2"] ** STEP["step"])
        u = m / (v.sqrt() + STEP["epsilon"])
        results.append(p - STEP["lr"] * (u + weight_decay * p if mode == 1 else u))
    return results


def adam_bound(before: torch.Tensor, exact: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Roundings of the update, some twenty, relative to the terms that are added."""
    terms = (exact - before.double()).abs() + before.double().abs() + m.double().abs()
    return gamma(24, torch.float32) * terms


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_adam_is_the_formula(dtype: torch.dtype, mode: int) -> None:
    lists = adam_lists(dtype)
    before = clones(lists)
    tex.multi_tensor_adam(
        CHUNK, flag(), lists, **STEP, mode=mode, bias_correction=1, weight_decay=0.03
    )
    for i, exact in enumerate(exact_adam(before, mode, 0.03)):
        bound = adam_bound(before[1][i], exact, before[2][i])
        assert_within(lists[1][i], exact, bound + rounding_bound(exact, dtype))


def test_adam_with_masters_remainders_and_fp8_agree() -> None:
    numbers = {**STEP, "mode": 1, "bias_correction": True, "weight_decay": 0.01}
    plain = adam_lists()
    start = clones(plain)
    tex.multi_tensor_adam(CHUNK, flag(), plain, **numbers)
    masters = clones([*start, start[1]])
    masters[1] = [x.bfloat16() for x in start[1]]
    tex.multi_tensor_adam(CHUNK, flag(), masters, **numbers)
    rounded = [x.bfloat16() for x in start[1]]  # the values that BF16 and a remainder of 0 are
    from_rounded = clones([start[0], rounded, start[2], start[3]])
    from_rounded[1] = [x.float() for x in rounded]
    tex.multi_tensor_adam(CHUNK, flag(), from_rounded, **numbers)
    split = clones([start[0], rounded, start[2], start[3]])
    split.append([torch.zeros_like(x, dtype=torch.int16) for x in rounded])
    tex.multi_tensor_adam_param_remainder(CHUNK, flag(), split, **numbers)
    scales = [torch.tensor([4.0]) for _ in SHAPES]
    fp8 = clones([start[0], start[1], start[2], start[3], start[1], scales, scales, scales])
    fp8[1] = [torch.zeros_like(x, dtype=torch.uint8) for x in start[1]]
    fp8[6] = [torch.zeros(1) for _ in SHAPES]
    tex.multi_tensor_adam_fp8(CHUNK, flag(), fp8, **numbers, fp8_dtype=7)
    for i in range(len(SHAPES)):
        assert_identical(masters[4][i], plain[1][i])
        assert_identical(masters[1][i], plain[1][i].bfloat16())
        assert_identical(fp8[4][i], plain[1][i])
        assert torch.equal(fp8[1][i], encode_reference(plain[1][i].double() * 4, E4M3))
        if plain[1][i].numel():
            assert fp8[6][i].item() == plain[1][i].abs().max() and fp8[7][i].item() == 0.25
        whole = (split[1][i].view(torch.int16).int() << 16) - ((split[4][i].int() & 0x8000) << 1)
        whole = whole | (split[4][i].int() & 0xFFFF)
        assert_identical(whole.view(torch.float32), from_rounded[1][i])


def test_capturable_adam_scales_gradients_and_obeys_the_flag() -> None:
    numbers = {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6}
    numbers.update(mode=1, bias_correction=1, weight_decay=0.03)
    plain = adam_lists()
    scaled = clones(plain)
    scaled[0] = [g * 64 for g in scaled[0]]
    masters = clones([*scaled, scaled[1]])
    masters[1] = [p.half() for p in masters[1]]
    device = {
        "lr": torch.tensor([0.1]),
        "step": torch.tensor([3], dtype=torch.int32),
        "inv_scale": torch.tensor([1 / 64]),
    }
    skip = torch.ones(1, dtype=torch.int32)
    untouched = clones(scaled)
    tex.multi_tensor_adam_capturable(CHUNK, skip, scaled, **numbers, **device)
    for one, former in zip(scaled, untouched, strict=True):
        for now, then in zip(one, former, strict=True):
            assert_identical(now, then)
    tex.multi_tensor_adam_capturable(CHUNK, flag(), scaled, **numbers, **device)
    tex.multi_tensor_adam_capturable_master(CHUNK, flag(), masters, **numbers, **device)
    tex.multi_tensor_adam(CHUNK, skip, plain, lr=0.1, step=3, **numbers)  # reads no flag
    for i in range(len(SHAPES)):
        assert_identical(scaled[1][i], plain[1][i])
        assert_identical(masters[4][i], plain[1][i])
        assert_identical(masters[1][i], plain[1][i].half())


def test_sgd_is_the_formula() -> None:
    numbers = {"weight_decay": 0.01, "momentum": 0.9, "dampening": 0.1, "lr": 0.2, "scale": 0.5}
    options = {"nesterov": False, "first_run": False, "wd_after_momentum": False}
    g, p, m = tensors(seed=1), tensors(seed=20), tensors(seed=40)
    before = clones([g, p, m])
    copies = [x.half() for x in p]
    skip = torch.ones(1, dtype=torch.int32)
    tex.multi_tensor_sgd(CHUNK, skip, [g, p, m, copies], **numbers, **options)
    assert all(torch.equal(a, b) for a, b in zip(p, before[1], strict=True))
    tex.multi_tensor_sgd(CHUNK, flag(), [g, p, m, copies], **numbers, **options)
    for i in range(len(SHAPES)):
        grad, param, buffer = (x[i].double() for x in before)
        step = grad * 0.5 + 0.01 * param
        buffer = 0.9 * buffer + 0.9 * step
        exact = param - 0.2 * buffer
        bound = gamma(8, torch.float32) * (param.abs() + grad.abs() + before[2][i].double().abs())
        assert_within(p[i], exact, bound)
        assert_within(m[i], buffer, bound)
        assert_within(copies[i], exact, bound + rounding_bound(exact, torch.float16))


# ---- scales


def test_scales_of_quantizers() -> None:
    amaxes = [torch.tensor([0.0, INF, float("nan"), 3.0]), torch.tensor([1e-45])]
    scales, scale_invs = ([torch.empty_like(x) for x in amaxes] for _ in range(2))
    lists = [amaxes, scales, scale_invs]
    tex.multi_tensor_compute_scale_and_scale_inv(CHUNK, flag(), lists, 448.0, False, 0.0)
    largest = torch.finfo(torch.float32).max
    assert_identical(scales[0], torch.tensor([1.0, 1.0, 1.0, 448.0]) / torch.tensor([1, 1, 1, 3.0]))
    assert scales[1].item() == largest
    assert_identical(scale_invs[0], 1 / scales[0])
    tex.multi_tensor_compute_scale_and_scale_inv(CHUNK, flag(), lists, 448.0, True, 2.0)
    assert scales[0].tolist() == [128.0, 1.0, 1.0, 128.0]
    values = torch.tensor([0.0, 448.0, 449.0, 1.0, INF, float("nan")], dtype=torch.bfloat16)
    codes = torch.empty(6, dtype=torch.uint8)
    tex.multi_tensor_compute_scale_inv_e8m0(CHUNK, flag(), [[values], [codes]])
    # 449 is 448 in BF16; 1 / 448 lies between 2^-9 and 2^-8.
    assert codes.tolist() == [0, 127, 127, 119, 254, 255]


# ---- layouts, write counts, refusals


def test_permuted_tensors_of_equal_strides_are_taken() -> None:
    x = random_tensor((4, 3, 5, 6)).contiguous(memory_format=torch.channels_last)
    y = torch.empty_like(x)
    tex.multi_tensor_scale(CHUNK, flag(), [[x], [y]], 3.0)
    assert_identical(y, x * 3)


def test_writes_are_counted_and_reads_are_not() -> None:
    lists = [[torch.ones(3)] for _ in range(4)]
    versions = [one[0]._version for one in lists]
    tex.multi_tensor_adam(CHUNK, flag(), lists, **STEP, mode=1, bias_correction=1, weight_decay=0)
    written = [one[0]._version - version for one, version in zip(lists, versions, strict=True)]
    assert written == [0, 1, 1, 1]
    with torch.inference_mode():
        x = torch.ones(3)
    tex.multi_tensor_scale(CHUNK, flag(), [[x], [x]], 2.0)
    assert x.tolist() == [2.0, 2.0, 2.0]


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ([[X]], ValueError, "multi_tensor_scale: tensor_lists has 1 lists; 2 are required: inputs"),
        ([[X], [X, X]], ValueError, "outputs has 2 tensors and inputs 1"),
        ([[X], [X[:1]]], ValueError, r"outputs\[0\] has 4 elements and inputs\[0\] 8"),
        ([[X], [X.t()]], ValueError, r"outputs\[0\] has shape \[4, 2\] and strides \[1, 4\]"),
        ([[X[:, ::2]], [X[:, ::2]]], ValueError, r"inputs\[0\] has shape"),
        ([[X], [X.int()]], TypeError, r"outputs\[0\] has dtype int32"),
        ([[X.double()], [X]], TypeError, r"multi_tensor_scale: inputs\[0\] has dtype Double"),
        ([[X], [X.to("meta")]], ValueError, r"outputs\[0\] is on meta and noop_flag on"),
    ],
)
def test_refused_lists(lists: list[list[torch.Tensor]], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        tex.multi_tensor_scale(CHUNK, flag(), lists, 2.0)
    assert (X == 1).all()


@pytest.mark.parametrize(
    ("noop", "error", "message"),
    [
        (torch.zeros(1), TypeError, "noop_flag has dtype Float; Int is required"),
        (torch.zeros(2, dtype=torch.int32), ValueError, r"noop_flag has shape \[2\]"),
    ],
)
def test_refused_flags(noop: torch.Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        tex.multi_tensor_l2norm(CHUNK, noop, [[X]])


def test_refused_scalars_and_formats() -> None:
    with pytest.raises(TypeError, match="inv_scale has dtype Double"):
        tex.multi_tensor_unscale_l2norm(CHUNK, flag(), [[X]], torch.ones(1).double())
    numbers = {**STEP, "mode": 1, "bias_correction": True, "weight_decay": 0.0}
    with pytest.raises(TypeError, match="multi_tensor_adam_fp8: fp8_dtype is 4"):
        tex.multi_tensor_adam_fp8(CHUNK, flag(), [[]] * 8, **numbers, fp8_dtype=4)
    with pytest.raises(ValueError, match="step is 4294967296"):
        tex.multi_tensor_adam(CHUNK, flag(), [[]] * 4, **{**numbers, "step": 2**32})
