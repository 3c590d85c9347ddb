# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The native parts of attention against the same composed of torch's operators; when they decline.

Both call the same kernels of torch, so that results are equal bit for bit.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.tolerances import assert_identical
from transformer_engine.pytorch.cpp_extensions.attention import attend, split_heads

S, S_KV, B, H, D = 5, 7, 3, 2, 8


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def operands(is_sbhd: bool, dtype: torch.dtype, s_kv: int = S_KV) -> list[torch.Tensor]:
    def shape(s: int) -> tuple[int, ...]:
        return (s, B, H, D) if is_sbhd else (B, s, H, D)

    return [leaf(*shape(S), dtype=dtype), *(leaf(*shape(s_kv), dtype=dtype) for _ in range(2))]


def composed(q, k, v, is_sbhd, causal, scale):
    order = (1, 2, 0, 3) if is_sbhd else (0, 2, 1, 3)
    q, k, v = (x.permute(order) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, None, 0.0, causal, scale=scale)
    return out.permute((2, 0, 1, 3) if is_sbhd else (0, 2, 1, 3)).flatten(2)


def gradients(out, inputs, grad):
    return torch.autograd.grad(out, inputs, grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("is_sbhd", [True, False])
def test_attend_equals_the_operators(is_sbhd, causal, dtype):
    inputs = operands(is_sbhd, dtype, S if causal else S_KV)
    out = attend(*inputs, is_sbhd, causal, 0.3)
    expected = composed(*inputs, is_sbhd, causal, 0.3)
    assert out.grad_fn.name() == "AttentionBackward"
    assert_identical(out, expected)
    grad = torch.randn_like(out)
    for mine, theirs in zip(
        gradients(out, inputs, grad), gradients(expected, inputs, grad), strict=True
    ):
        assert_identical(mine, theirs)


@pytest.mark.parametrize("is_sbhd", [True, False])
def test_operands_and_gradients_of_any_strides(is_sbhd):
    # Heads outermost in memory, every other row.
    order = (2, 1, 0, 3) if is_sbhd else (1, 2, 0, 3)
    inputs = [torch.randn(H, B, 2 * S, D)[:, :, ::2].permute(order) for _ in range(3)]
    inputs = [x.detach().requires_grad_() for x in inputs]
    assert not any(x.is_contiguous() for x in inputs)
    out = attend(*inputs, is_sbhd, True, 0.5)
    expected = composed(*inputs, is_sbhd, True, 0.5)
    assert_identical(out, expected)
    for grad in (
        torch.ones(()).expand(out.shape),
        torch.randn(out.shape[::-1]).permute(2, 1, 0),
        torch.randn(out.shape[0], 1, out.shape[2]).expand(out.shape),
    ):
        mine = torch.autograd.grad(out, inputs, grad, retain_graph=True)
        theirs = torch.autograd.grad(expected, inputs, grad.contiguous(), retain_graph=True)
        for one, other in zip(mine, theirs, strict=True):
            assert_identical(one, other)


def test_only_the_gradients_asked_for_are_made():
    q, k, v = operands(True, torch.bfloat16)
    k = k.detach()
    out = attend(q, k, v, True, False, 0.3)
    q_grad, v_grad = gradients(out, (q, v), torch.ones_like(out))
    assert q_grad.shape == q.shape and v_grad.shape == v.shape
    with pytest.raises(RuntimeError, match=r"not require grad|not to have been used"):
        gradients(attend(q, k, v, True, False, 0.3), (k,), torch.ones_like(out))
    frozen = [x.detach() for x in (q, k, v)]
    assert attend(*frozen, True, False, 0.3).grad_fn is None
    with torch.no_grad():
        assert attend(q, k, v, True, False, 0.3).grad_fn is None


def test_saved_tensors_are_those_of_autograd():
    inputs = operands(True, torch.float32)
    packed = []

    def pack(x):
        packed.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = attend(*inputs, True, False, 0.3)
    assert len(packed) == 5  # query, key, value, statistics, output
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    out = attend(*inputs, True, False, 0.3)
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_it_is_differentiable_once():
    inputs = operands(True, torch.float32)
    out = attend(*inputs, True, False, 0.3)
    (grad,) = torch.autograd.grad(out.sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.sum().backward()


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    pass


def test_it_declines_what_the_fused_kernel_or_native_code_cannot_take():
    q, k, v = operands(True, torch.bfloat16)
    assert attend(q, k, v.double(), True, False, 1.0) is None
    assert attend(q[0], k[0], v[0], True, False, 1.0) is None
    assert attend(q, k, v[..., :4], True, False, 1.0) is None
    assert attend(q[:0], k, v, True, False, 1.0) is None
    assert attend(q.to("meta"), k, v, True, False, 1.0) is None
    assert attend(q.detach().as_subclass(Own), k, v, True, False, 1.0) is None
    gaps = q.detach().repeat_interleave(2, -1)[..., ::2]  # torch's choice wants dense rows
    assert attend(gaps, k, v, True, False, 1.0) is None
    assert attend(None, k, v, True, False, 1.0) is None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert attend(q, k, v, True, False, 1.0) is None
    with Watching():
        assert attend(q, k, v, True, False, 1.0) is None
        assert split_heads(torch.randn(4, 24), 1, 8, True, 1, 1, 1) is None
    seen = torch.func.grad(lambda x: 0 * x.sum() + (attend(x, k, v, True, False, 1.0) is None))(
        q.detach().float()
    )
    assert seen.shape == q.shape
    with pytest.raises(TypeError, match="takes 6 arguments but 3 were given"):
        attend(q, k, v)


def composed_split(x, groups, size, interleaved, *parts):
    leading = x.shape[:-1]
    if not interleaved:
        split = x.view(*leading, sum(parts) * groups, size)
        return split.split_with_sizes([part * groups for part in parts], -2)
    split = x.view(*leading, groups, sum(parts), size).split_with_sizes(parts, -2)
    return tuple(
        piece.reshape(*leading, part * groups, size)
        for piece, part in zip(split, parts, strict=True)
    )


@pytest.mark.parametrize("leading", [(), (5,), (5, 3)])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("parts", [(1, 1, 1), (3, 1, 1), (1, 1), (2, 1)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_split_heads_equals_the_operators(groups, parts, interleaved, leading):
    size = 4
    x = leaf(*leading, groups * sum(parts) * size)
    mine = split_heads(x, groups, size, interleaved, *parts)
    theirs = composed_split(x, groups, size, interleaved, *parts)
    assert len(mine) == len(parts)
    for one, other in zip(mine, theirs, strict=True):
        assert_identical(one, other)
    grads = [torch.randn_like(one) for one in mine]
    (got,) = torch.autograd.grad(mine, (x,), grads, retain_graph=True)
    (expected,) = torch.autograd.grad(theirs, (x,), grads, retain_graph=True)
    assert_identical(got, expected)
    # One part alone: the others' gradients are zeros.
    (got,) = torch.autograd.grad(mine[1], (x,), grads[1].expand_as(mine[1]), retain_graph=True)
    (expected,) = torch.autograd.grad(theirs[1], (x,), grads[1], retain_graph=True)
    assert_identical(got, expected)
    strided = torch.ones(()).expand(mine[0].shape)
    (got,) = torch.autograd.grad(mine[0], (x,), strided.to(x.dtype))
    (expected,) = torch.autograd.grad(theirs[0], (x,), strided.to(x.dtype))
    assert_identical(got, expected)


def test_split_heads_makes_views_where_it_can():
    x = torch.randn(5, 3, 24)
    for part in split_heads(x, 2, 4, True, 1, 1, 1):
        assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.fill_(7.0)
    assert split_heads(x, 2, 4, True, 1, 1, 1)[2].eq(7.0).all()


def test_split_heads_declines_or_refuses_what_does_not_fit():
    x = torch.randn(5, 24)
    assert split_heads(x, 2, 4, True, 1, 1) is None  # 16 columns are needed
    assert split_heads(torch.randn(24, 5).t(), 2, 4, True, 1, 1, 1) is None
    assert split_heads(torch.randn(2, 2, 2, 24), 2, 4, True, 1, 1, 1) is None
    assert split_heads(x[:0], 2, 4, True, 1, 1, 1) is None
    assert split_heads(x.to("meta"), 2, 4, True, 1, 1, 1) is None
    with pytest.raises(ValueError, match="part 1 is 0; at least one head"):
        split_heads(x, 2, 4, True, 1, 0, 2)
    with pytest.raises(ValueError, match="groups is 0"):
        split_heads(x, 0, 4, True, 1, 1, 1)
    with pytest.raises(TypeError, match="takes 6 or 7 arguments but 2 were given"):
        split_heads(x, 2)
