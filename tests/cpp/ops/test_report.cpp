// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <transformer_engine/report.h>

namespace te = transformer_engine;

TEST(Report, NamesTheChosenCpuInstructionSet) {
  const auto statuses = te::backend_statuses();
  ASSERT_FALSE(statuses.empty());
  EXPECT_EQ(statuses[0].name, std::string("cpu (") + te::cpu_instruction_set() + ")");
  EXPECT_TRUE(statuses[0].available);
}

TEST(Report, EveryMissingBackendSaysWhyAndWhatToDo) {
  for (const auto& status : te::backend_statuses()) {
    if (!status.available) {
      EXPECT_FALSE(status.reason.empty()) << status.name;
      EXPECT_FALSE(status.disables.empty()) << status.name;
      EXPECT_FALSE(status.remedy.empty()) << status.name;
    }
  }
}
