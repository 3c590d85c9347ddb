# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core as a client of this library, on CPUs over gloo: see __main__.py."""
