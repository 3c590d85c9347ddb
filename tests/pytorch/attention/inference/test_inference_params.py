# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""InferenceParams says that there is no cache yet."""

import pytest

from transformer_engine.pytorch.attention import InferenceParams


def test_construction_names_what_was_asked_for():
    with pytest.raises(
        NotImplementedError, match=r"InferenceParams: .*max_batch_size=2 and max_sequence_length=8"
    ):
        InferenceParams(2, 8)
