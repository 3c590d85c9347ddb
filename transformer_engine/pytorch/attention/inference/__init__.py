# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Key-value cache for generation: the names only, in this version."""

from .inference_params import InferenceParams

__all__ = ["InferenceParams"]
