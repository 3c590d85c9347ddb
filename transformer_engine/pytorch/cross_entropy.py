# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Cross entropy of logits whose vocabulary is divided over tensor-parallel ranks.

    loss = (1 - s) (lse - x[target]) + s (lse - mean(x)),    lse = log sum exp x,  s = smoothing

Each rank reads its logits once; four numbers a row go round the ranks. FP32 inside
(``common/include/transformer_engine/cross_entropy.h``); the gradient is rounded once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .arguments import (
    check_flag,
    check_int,
    check_probability,
    check_tensor,
    group_size,
)
from .cpp_extensions.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_loss,
    cross_entropy_statistics,
    is_native,
)
from .distributed.groups import all_gather_single, get_distributed_rank
from .rank_errors import naming

__all__ = ["parallel_cross_entropy"]

_WHO = "parallel_cross_entropy"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Everything but the tensors."""

    vocabulary: tuple[int, int, int]  # ignored id, first id of this rank, size over all ranks
    label_smoothing: float
    reduce_loss: bool
    group: ProcessGroup | None
    ranks: int
    overwrite_input: bool


class _CrossEntropy(torch.autograd.Function):
    """The native passes. Saves the logits and three numbers a row."""

    @staticmethod
    def forward(ctx: Any, inp: Tensor, target: Tensor, problem: _Problem) -> Tensor:
        logits = inp.contiguous().resolve_neg()
        ids = target.contiguous()
        statistics = cross_entropy_statistics(logits, ids, problem.vocabulary)
        if problem.ranks > 1:
            statistics = _of_all_ranks(statistics, logits.shape[-1], ids, problem)
        loss, softmax, weight = cross_entropy_loss(
            statistics, ids, problem.vocabulary, problem.label_smoothing, problem.reduce_loss
        )
        ctx.save_for_backward(logits, ids, softmax, weight)
        ctx.problem, ctx.is_overwritten = problem, False
        return loss.view(()) if problem.reduce_loss else loss.view(target.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        problem = ctx.problem
        if ctx.is_overwritten:
            raise RuntimeError(
                f"{_WHO}: backward runs a second time, and overwrite_input=True put the first "
                "gradient where the logits were. Call it with overwrite_input=False."
            )
        logits, ids, softmax, weight = ctx.saved_tensors
        grad = cross_entropy_backward(
            grad_output,
            logits,
            ids,
            softmax,
            weight,
            problem.vocabulary,
            problem.label_smoothing,
            problem.overwrite_input,
        )
        if problem.overwrite_input:
            ctx.is_overwritten = True
            torch.autograd.graph.increment_version(logits)  # whoever else saved it is told
        return grad, None, None


def _gathered(part: Tensor, problem: _Problem) -> Tensor:
    """Rows of all ranks, rank after rank."""
    rows, numbers = part.shape
    whole = part.new_empty(problem.ranks * rows, numbers)
    with naming(_WHO, "all-gather", problem.group):
        all_gather_single(whole, part, group=problem.group)
    return whole


def _of_all_ranks(statistics: Tensor, columns: int, ids: Tensor, problem: _Problem) -> Tensor:
    """The statistics of every rank. On the CPU a row more goes along, which says how many columns
    a rank has and which id it refuses: then all ranks raise alike, and none waits for another. A
    GPU is not waited for.
    """
    if ids.device.type != "cpu":
        return _gathered(statistics, problem)
    ignored, _, size = problem.vocabulary
    wrong = _wrong_id(ids, problem.vocabulary)
    note = torch.tensor([[columns, ignored if wrong is None else wrong]], dtype=torch.int64)
    numbers = statistics.shape[1]
    whole = _gathered(torch.cat((statistics, note.view(statistics.dtype))), problem)
    whole = whole.view(problem.ranks, -1, numbers)
    notes = whole[:, -1].contiguous().view(torch.int64).tolist()
    widths = [width for width, _ in notes]
    if len(set(widths)) > 1:
        raise ValueError(
            f"{_WHO}: the last dimension of inp is {widths} on the ranks of dist_process_group; it "
            "must be the same on all. Pad the vocabulary to a multiple of their number, with "
            "logits of -inf."
        )
    for _, given in notes:
        if given != ignored:
            _refuse_id(given, ignored, size)
    return whole[:, :-1].contiguous().view(-1, numbers)


def _composed(inp: Tensor, target: Tensor, problem: _Problem) -> Tensor:
    """The same of torch operators, of a whole vocabulary: what tracers and transforms see."""
    ignored = target == problem.vocabulary[0]
    logits = inp.to(torch.float32).masked_fill(ignored.unsqueeze(-1), 0.0)
    log_sum = logits.logsumexp(-1)
    ids = target.masked_fill(ignored, 0).unsqueeze(-1)
    loss = log_sum - logits.gather(-1, ids).squeeze(-1)
    if problem.label_smoothing > 0.0:
        loss = torch.lerp(loss, log_sum - logits.mean(-1), problem.label_smoothing)
    loss = loss.masked_fill(ignored, 0.0)
    return loss.sum() / (~ignored).sum().clamp(min=1) if problem.reduce_loss else loss


def _check_tensors(inp: Tensor, target: Tensor) -> None:
    if check_tensor(_WHO, "inp", inp).dtype not in _DTYPES:
        raise TypeError(
            f"{_WHO}: inp has dtype {inp.dtype}; it must be FP32, BF16 or FP16. Cast the logits."
        )
    if inp.dim() != 3:
        raise ValueError(
            f"{_WHO}: inp has shape {tuple(inp.shape)}; it must be [b, s, v] or [s, b, v], v the "
            "vocabulary of this rank."
        )
    if check_tensor(_WHO, "target", target).dtype != torch.int64:
        raise TypeError(
            f"{_WHO}: target has dtype {target.dtype}; it must be torch.int64. Call target.long()."
        )
    if target.shape != inp.shape[:2]:
        raise ValueError(
            f"{_WHO}: target has shape {tuple(target.shape)}; for inp of shape {tuple(inp.shape)} "
            f"it must be {tuple(inp.shape[:2])}."
        )
    if target.device != inp.device:
        raise ValueError(
            f"{_WHO}: target is on {target.device} and inp on {inp.device}; they must be on one "
            "device."
        )


def _wrong_id(target: Tensor, vocabulary: tuple[int, int, int]) -> int | None:
    """The first id outside the vocabulary, of ids that are on the host anyway."""
    ignored, _, size = vocabulary
    wrong = ((target < 0) | (target >= size)) & (target != ignored)
    return int(target[wrong][0]) if wrong.any() else None


def _refuse_id(given: int, ignored: int, size: int) -> NoReturn:
    raise ValueError(
        f"{_WHO}: target has the id {given}; ids lie in 0..{size - 1}, the vocabulary of all "
        f"ranks, or are ignore_idx={ignored}."
    )


def _check_ignored(ignore_idx: Any) -> int:
    ignored = check_int(_WHO, "ignore_idx", ignore_idx, minimum=-(2**63))
    if ignored >= 2**63:
        raise ValueError(
            f"{_WHO}: ignore_idx is {ignored}; ids are int64, so it must be less than 2**63."
        )
    return ignored


def parallel_cross_entropy(
    inp: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: ProcessGroup | None = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
    *,
    _input: Tensor | None = None,
    overwrite_input: bool = False,
) -> Tensor:
    """Cross entropy between logits and token ids.

    Parameters
    ----------
    inp : torch.Tensor
        Logits ``[b, s, v]`` or ``[s, b, v]``, any strides, FP32, BF16 or FP16. With a group, v is
        the part of the vocabulary that this rank holds: rank r has the ids ``r v`` and up, so that
        v must be the same on all ranks. Every rank refuses others on the CPU; on a GPU, which is
        not waited for, nothing compares them and the loss is wrong.
    target : torch.Tensor
        int64 ids of the whole vocabulary, in the shape of the leading dimensions, any strides. Ids
        outside it are refused on the CPU; on a GPU, which is not waited for, they give NaN.
    label_smoothing : float
        Share of the probability, in 0..1, that is spread evenly over the whole vocabulary.
    reduce_loss : bool
        Return the mean over the targets that are not ignored (0 where all are).
    dist_process_group : ProcessGroup, optional
        Ranks that share the vocabulary. None: this rank has all of it.
    ignore_idx : int
        Targets with this id have loss 0 and gradient 0.
    is_cg_capturable : bool
        Accepted; nothing here waits for the device, so every call can be captured in a CUDA graph.
    overwrite_input : bool
        Let backward write the gradient over `inp` (over the copy of one that is not contiguous),
        which saves that much memory. It can then run once only. Logits that are a leaf then have
        a ``grad`` in the memory of the logits themselves: what changes one, such as an optimizer
        or ``grad.zero_()``, changes the other.

    Returns
    -------
    torch.Tensor
        FP32, in the shape of `target`, or ``[]`` with `reduce_loss`.

    Raises
    ------
    ValueError, TypeError
        Tensors of other shapes, dtypes or devices, ids outside the vocabulary or parts of unequal
        size (on every rank), a group that this rank is not in.
    RuntimeError
        A second backward with `overwrite_input`.
    """
    if _input is not None:
        warnings.warn(f"{_WHO}: _input is deprecated; use inp.", DeprecationWarning, stacklevel=2)
        if inp is not None and inp is not _input:
            raise ValueError(f"{_WHO}: _input is given beside inp; only one of them may be.")
        inp = _input
    _check_tensors(inp, target)
    smoothing = check_probability(_WHO, "label_smoothing", label_smoothing)
    reduce_loss = check_flag(_WHO, "reduce_loss", reduce_loss)
    check_flag(_WHO, "is_cg_capturable", is_cg_capturable)
    overwrite_input = check_flag(_WHO, "overwrite_input", overwrite_input)
    ignored = _check_ignored(ignore_idx)
    ranks, rank = 1, 0
    if dist_process_group is not None:
        ranks = group_size(_WHO, "dist_process_group", dist_process_group)
        rank = get_distributed_rank(dist_process_group)
    size = inp.shape[-1]
    vocabulary = (ignored, rank * size, ranks * size)
    problem = _Problem(
        vocabulary, smoothing, reduce_loss, dist_process_group, ranks, overwrite_input
    )
    if torch.compiler.is_compiling() or not (is_native(inp) and is_native(target)):
        if ranks > 1:
            raise NotImplementedError(
                f"{_WHO}: inp is {type(inp).__name__} on {inp.device} in a tracer or transform, or "
                f"without data; over {ranks} ranks this version takes plain tensors only. Use "
                "torch.compiler.disable, or call it outside."
            )
        return _composed(inp, target, problem)
    if target.device.type == "cpu" and ranks == 1:
        wrong = _wrong_id(target, vocabulary)
        if wrong is not None:
            _refuse_id(wrong, ignored, size)
    return _CrossEntropy.apply(inp, target, problem)
