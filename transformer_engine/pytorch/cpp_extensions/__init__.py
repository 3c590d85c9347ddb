# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one door to the compiled module: one file per area, typed in its .pyi."""
