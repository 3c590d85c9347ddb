# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of the example in train_gpt.py: text, model, training, output."""
