# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The text to learn: Python's own manual pages, which every Python brings along."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Every tenth page is held out, so that the two parts are alike in subject and style.
HELD_OUT_EVERY = 10


@dataclass(frozen=True)
class Corpus:
    """Text as numbers: a character's number is its position in `characters`."""

    characters: str
    train: Tensor  # int64 [number of characters]
    held_out: Tensor

    def encode(self, text: str) -> Tensor:
        """int64 [len(text)]"""
        return torch.tensor([self.characters.index(character) for character in text])

    def decode(self, tokens: Tensor) -> str:
        """The text of int64 [length]."""
        return "".join(self.characters[token] for token in tokens.tolist())


def load_corpus() -> Corpus:
    """Read the pages of `help()` on language topics, about 460,000 characters of English."""
    topics: dict[str, str] = pydoc_data.topics.topics
    pages = [topics[name] for name in sorted(topics)]
    characters = "".join(sorted(set("\n".join(pages))))
    number_of = {character: number for number, character in enumerate(characters)}

    def tokens_of(chosen: Iterable[str]) -> Tensor:
        return torch.tensor([number_of[character] for character in "\n".join(chosen)])

    return Corpus(
        characters,
        tokens_of(page for i, page in enumerate(pages) if i % HELD_OUT_EVERY != 0),
        tokens_of(page for i, page in enumerate(pages) if i % HELD_OUT_EVERY == 0),
    )


def draw_batch(
    tokens: Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random windows of the text and, as targets, the same windows one character later.

    Returns
    -------
    (inputs, targets) : int64 [batch, context] each
    """
    starts = torch.randint(len(tokens) - context, (batch, 1), generator=generator)
    windows = tokens[starts + torch.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]
