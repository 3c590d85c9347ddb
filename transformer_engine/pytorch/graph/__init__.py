# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of modules."""

from .make_graphed import graph_pool_handle, make_graphed_callables
from .state import (
    is_graph_capturing,
    restore_fp8_tensors,
    save_fp8_tensors,
    set_capture_end,
    set_capture_start,
)

__all__ = [
    "graph_pool_handle",
    "is_graph_capturing",
    "make_graphed_callables",
    "restore_fp8_tensors",
    "save_fp8_tensors",
    "set_capture_end",
    "set_capture_start",
]
