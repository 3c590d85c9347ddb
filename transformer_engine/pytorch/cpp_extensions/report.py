# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the native build can do."""

from transformer_engine_torch import backend_statuses as backend_statuses
