# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Speed of kernels, host overhead and layers against torch; run one with `python -m`."""
