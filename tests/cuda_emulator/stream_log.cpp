// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "stream_log.h"

namespace cuda_emulator {

namespace {

bool is_logging = false;
std::vector<StreamStep> logged;

}  // namespace

StreamLog::StreamLog() {
  logged.clear();
  is_logging = true;
}
StreamLog::~StreamLog() { is_logging = false; }
const std::vector<StreamStep>& StreamLog::steps() const { return logged; }

void log_stream(StreamStep step) {
  if (is_logging) {
    logged.push_back(step);
  }
}

}  // namespace cuda_emulator
