# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""parallel_cross_entropy against float64, divided over ranks against undivided."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import transformer_engine.pytorch as te
from helpers.formats import FORMATS
from helpers.generators import placed, random_tensor, strided_copy
from helpers.ranks import ranks
from helpers.tolerances import assert_identical, assert_within, rounding_bound
from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy

FP32 = torch.float32
ROUNDOFF = FORMATS[FP32].unit_roundoff


def problem(shape=(3, 5, 40), dtype=FP32, seed=1, ignored=-100):
    """Logits of spread 4 and targets, two of them ignored."""
    logits = 4 * random_tensor(shape, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, shape[-1], shape[:-1], generator=generator, device="cpu")
    target = placed(target, None)
    target.view(-1)[[1, 7]] = ignored
    return logits, target


def exact(logits, target, smoothing, reduce_loss, grad, ignored=-100):
    """(loss, gradient of the logits) in float64."""
    leaf = logits.detach().double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        leaf.flatten(0, 1),
        target.flatten(),
        ignore_index=ignored,
        label_smoothing=smoothing,
        reduction="mean" if reduce_loss else "none",
    )
    loss = loss if reduce_loss else loss.view(target.shape)
    loss.backward(grad.double())
    return loss.detach(), leaf.grad


def loss_bound(logits):
    """An FP32 log of a sum of n exponentials, each off by its exponent's rounding (of at most twice
    the largest logit) and two more; then sums of numbers of the logits' size.
    """
    n, largest = logits.shape[-1], float(logits.abs().max()) if logits.numel() else 0.0
    return ROUNDOFF * (n + 8 + 16 * largest)


def gradient_bound(logits, exact_gradient, grad):
    """Relative errors of an exponential and of the reciprocal sum, of shares of at most 1."""
    scale = 2.0 * float(grad.abs().max())
    return scale * loss_bound(logits) + rounding_bound(exact_gradient, logits.dtype)


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduce_loss", [False, True])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_loss_and_gradient(dtype, smoothing, reduce_loss, ignored):
    logits, target = problem(dtype=dtype, ignored=ignored)
    grad = random_tensor(() if reduce_loss else target.shape, seed=3)
    leaf = logits.clone().requires_grad_()
    loss = parallel_cross_entropy(leaf, target, smoothing, reduce_loss, None, ignored)
    loss.backward(grad)
    want, want_grad = exact(logits, target, smoothing, reduce_loss, grad, ignored)
    assert loss.dtype == FP32 and leaf.grad.dtype == dtype
    assert_within(loss, want, loss_bound(logits))
    assert_within(leaf.grad, want_grad, gradient_bound(logits, want_grad, grad))
    if not reduce_loss:
        assert loss.view(-1)[1] == 0
    assert leaf.grad.view(-1, 40)[[1, 7]].eq(0).all()


@pytest.mark.parametrize("vocabulary", [1, 2049, 30011])
def test_vocabularies_of_any_size(vocabulary):
    logits, target = problem((2, 4, vocabulary), torch.bfloat16)
    leaf = logits.clone().requires_grad_()
    loss = te.parallel_cross_entropy(leaf, target)
    grad = torch.ones(2, 4)
    loss.sum().backward()  # an expanded gradient
    want, want_grad = exact(logits, target, 0.0, False, grad)
    assert_within(loss, want, loss_bound(logits))
    assert_within(leaf.grad, want_grad, gradient_bound(logits, want_grad, grad))


@pytest.mark.parametrize("reduce_loss", [False, True])
def test_when_all_is_ignored_loss_and_gradient_are_zero(reduce_loss):
    logits = random_tensor((2, 3, 5)).requires_grad_()
    loss = parallel_cross_entropy(
        logits, torch.full((2, 3), 9), reduce_loss=reduce_loss, ignore_idx=9
    )
    loss.sum().backward()
    assert loss.eq(0).all() and logits.grad.eq(0).all()


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5)])
def test_empty_batches(shape):
    logits = torch.zeros(shape, requires_grad=True)
    target = torch.zeros(shape[:2], dtype=torch.int64)
    assert parallel_cross_entropy(logits, target).shape == target.shape
    loss = parallel_cross_entropy(logits, target, reduce_loss=True)
    loss.backward()
    assert loss == 0 and logits.grad.shape == shape


def test_strided_logits_and_targets():
    logits, target = problem()
    expected = parallel_cross_entropy(logits, target)
    labels = torch.stack((target, target), -1).as_strided((3, 5), (10, 2))
    for inp in (strided_copy(logits), torch._neg_view(-logits)):
        leaf = inp.detach().requires_grad_()
        loss = parallel_cross_entropy(leaf, labels)
        assert_identical(loss, expected)
        loss.sum().backward()
        assert leaf.grad.shape == logits.shape
    batch_first = parallel_cross_entropy(logits.transpose(0, 1), target.t())
    assert_identical(batch_first, expected.t())


def test_masked_logits_have_no_share():
    logits, target = problem()
    logits[..., 20:] = -torch.inf
    target[target >= 20] = 0
    leaf = logits.clone().requires_grad_()
    loss = parallel_cross_entropy(leaf, target)
    loss.sum().backward()
    assert_within(
        loss, exact(logits, target, 0.0, False, torch.ones(3, 5))[0], loss_bound(logits[..., :20])
    )
    assert leaf.grad[..., 20:].eq(0).all()


def test_overwritten_logits_hold_the_gradient():
    logits, target = problem()
    expected = logits.clone().requires_grad_()
    parallel_cross_entropy(expected, target).sum().backward()
    leaf = logits.clone().requires_grad_()
    doubled = leaf * 1
    loss = parallel_cross_entropy(doubled, target, overwrite_input=True)
    loss.sum().backward(retain_graph=True)
    assert_identical(leaf.grad, expected.grad)
    assert_identical(doubled.detach(), expected.grad)
    with pytest.raises(RuntimeError, match=r"^parallel_cross_entropy: backward runs a second time"):
        loss.sum().backward()


def test_whoever_saved_overwritten_logits_is_told():
    logits, target = problem()
    doubled = logits.requires_grad_() * 1
    squared = doubled.square().sum()
    parallel_cross_entropy(doubled, target, overwrite_input=True).sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_backward_may_run_twice():
    logits, target = problem()
    logits.requires_grad_()
    loss = parallel_cross_entropy(logits, target, reduce_loss=True)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (second,) = torch.autograd.grad(loss, logits)
    assert_identical(first, second)


def test_the_signature_is_what_clients_call():
    logits, target = problem()
    assert te.parallel_cross_entropy is te.cross_entropy.parallel_cross_entropy
    names = list(inspect.signature(te.parallel_cross_entropy).parameters)
    assert names[:7] == [
        *("inp", "target", "label_smoothing", "reduce_loss"),
        *("dist_process_group", "ignore_idx", "is_cg_capturable"),
    ]
    expected = parallel_cross_entropy(logits, target)
    assert_identical(
        te.parallel_cross_entropy(logits, target, 0.0, False, None, -100, True), expected
    )
    with pytest.warns(DeprecationWarning, match="_input is deprecated; use inp"):
        assert_identical(te.parallel_cross_entropy(None, target, _input=logits), expected)
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="_input is given"):
        te.parallel_cross_entropy(logits, target, _input=logits.clone())


def test_transforms_and_tracers_see_operators():
    logits, target = problem()
    for smoothing, reduce_loss in ((0.0, False), (0.1, True)):
        expected = parallel_cross_entropy(logits, target, smoothing, reduce_loss)

        def run(x, smoothing=smoothing, reduce_loss=reduce_loss):
            return parallel_cross_entropy(x, target, smoothing, reduce_loss)

        batch = torch.vmap(run)(torch.stack((logits, logits)))
        for have in batch:
            assert_within(have, expected.double(), 2 * loss_bound(logits))
        leaf = logits.clone().requires_grad_()
        run(leaf).sum().backward()
        grad = torch.func.grad(lambda x, run=run: run(x).sum())(logits)
        assert_within(grad, leaf.grad.double(), 4 * loss_bound(logits))
        meta = parallel_cross_entropy(logits.to("meta"), target.to("meta"), smoothing, reduce_loss)
        assert meta.shape == expected.shape and meta.dtype == FP32
        mode = FakeTensorMode()
        fake = [mode.from_tensor(x) for x in (logits, target)]
        assert parallel_cross_entropy(*fake, smoothing, reduce_loss).shape == expected.shape


X, IDS = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inp": None}, TypeError, "inp is None"),
        ({"inp": X.double()}, TypeError, r"inp has dtype torch\.float64"),
        ({"inp": X[0]}, ValueError, r"inp has shape \(3, 5\)"),
        ({"target": [0]}, TypeError, r"target is \[0\]"),
        ({"target": IDS.int()}, TypeError, r"target has dtype torch\.int32"),
        ({"target": IDS[:1]}, ValueError, r"target has shape \(1, 3\)"),
        ({"target": IDS.to("meta")}, ValueError, "target is on meta and inp on cpu"),
        ({"target": IDS + 5}, ValueError, r"target has the id 5; ids lie in 0\.\.4"),
        ({"target": IDS - 1}, ValueError, "target has the id -1"),
        ({"label_smoothing": 1.5}, ValueError, r"label_smoothing is 1\.5"),
        ({"label_smoothing": "a"}, TypeError, "label_smoothing is 'a'"),
        ({"reduce_loss": "no"}, TypeError, "reduce_loss is 'no'"),
        ({"ignore_idx": 0.5}, TypeError, r"ignore_idx is 0\.5"),
        ({"ignore_idx": 2**63}, ValueError, "ignore_idx is 9223372036854775808; .* less than 2"),
        ({"is_cg_capturable": 2}, TypeError, "is_cg_capturable is 2"),
        ({"overwrite_input": None}, TypeError, "overwrite_input is None"),
        ({"dist_process_group": 3}, TypeError, "dist_process_group is 3"),
    ],
)
def test_refusals(arguments, error, message):
    if "dist_process_group" in arguments and not torch.distributed.is_initialized():
        error, message = (TypeError, ValueError), "dist_process_group|Default process group"
    with pytest.raises(error, match=message):
        parallel_cross_entropy(**{"inp": X, "target": IDS, **arguments})


def run_shard(rank, smoothing, reduce_loss, dtype):
    """(loss, gradient of this rank's logits)."""
    logits, target = problem(dtype=dtype)
    group = torch.distributed.group.WORLD
    shard = logits.chunk(group.size(), -1)[rank].clone().requires_grad_()
    loss = parallel_cross_entropy(shard, target, smoothing, reduce_loss, group)
    loss.sum().backward()
    return loss.detach(), shard.grad


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16])
@pytest.mark.parametrize(("smoothing", "reduce_loss"), [(0.0, False), (0.1, False), (0.2, True)])
def test_ranks_give_what_one_rank_gives(size, dtype, smoothing, reduce_loss):
    logits, target = problem(dtype=dtype)
    results = ranks(size).run(run_shard, smoothing, reduce_loss, dtype)
    grad = torch.ones(() if reduce_loss else target.shape)
    want, want_grad = exact(logits, target, smoothing, reduce_loss, grad)
    for loss, _ in results:
        assert_identical(loss, results[0][0])  # every rank has the same
        assert_within(loss, want, loss_bound(logits))
    whole = torch.cat([part for _, part in results], -1)
    assert_within(whole, want_grad, gradient_bound(logits, want_grad, grad))


def run_masked_shard(rank):
    logits = torch.full((1, 2, 4), -200.0 if rank == 0 else -torch.inf)
    target = torch.tensor([[1, -100]])
    loss = parallel_cross_entropy(logits, target, 0.0, False, torch.distributed.group.WORLD)
    return loss.tolist()


def test_a_rank_whose_logits_are_all_masked():
    for losses in ranks(2).run(run_masked_shard):
        assert abs(losses[0][0] - math.log(4)) <= 8 * ROUNDOFF
        assert losses[0][1] == 0


def refuse_on_meta(rank):
    group = torch.distributed.group.WORLD
    with pytest.raises(NotImplementedError, match="over 2 ranks this version takes plain tensors"):
        parallel_cross_entropy(X.to("meta"), IDS.to("meta"), dist_process_group=group)
    with pytest.raises(ValueError, match=r"target has the id 10; ids lie in 0\.\.9"):
        parallel_cross_entropy(X, IDS + 10, dist_process_group=group)
    return parallel_cross_entropy(X, IDS + 9, dist_process_group=group).shape


def test_what_is_refused_over_ranks():
    assert ranks(2).run(refuse_on_meta) == [torch.Size([2, 3])] * 2


def refuse_unequal_parts(rank):
    group = torch.distributed.group.WORLD
    logits = torch.zeros(1, 2, 5 if rank == 0 else 3)
    inside = torch.tensor([[4, 3]])  # an id of every rank's own count of the vocabulary
    outside = torch.tensor([[4, 6]])  # rank 1 counts 6 ids
    for target in (inside, outside):
        with pytest.raises(ValueError, match=r"last dimension of inp is \[5, 3\] on the ranks"):
            parallel_cross_entropy(logits, target, dist_process_group=group)
    own = torch.tensor([[1, 10 if rank == 1 else 2]])
    with pytest.raises(ValueError, match=r"target has the id 10; ids lie in 0\.\.9"):
        parallel_cross_entropy(torch.zeros(1, 2, 5), own, dist_process_group=group)
    for rows in (0, 1, 6):
        loss = parallel_cross_entropy(
            torch.zeros(rows, 1, 5), torch.full((rows, 1), 9), dist_process_group=group
        )
        assert_within(loss, torch.full((rows, 1), math.log(10)), 8 * ROUNDOFF * math.log(10))
    return parallel_cross_entropy(X, IDS + 9, dist_process_group=group).shape


def test_every_rank_refuses_what_one_rank_refuses():
    assert ranks(2).run(refuse_unequal_parts) == [torch.Size([2, 3])] * 2


def test_an_overwritten_leaf_shares_its_memory_with_its_gradient():
    leaf = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    parallel_cross_entropy(leaf, IDS, overwrite_input=True).sum().backward()
    assert leaf.grad.data_ptr() == leaf.data_ptr()
