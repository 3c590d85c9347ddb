# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Attention in FP8 with one scale per tensor: recipes, slots, the rule and its boundaries."""
