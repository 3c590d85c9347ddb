// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Expecting one of the core's errors with certain words in its message.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>

namespace transformer_engine::testing {

template <typename Error, typename Body>
void expect_error(const Body& body, std::initializer_list<const char*> words) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    for (const char* word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "'" << word << "' is not in: " << error.what();
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
  }
}

}  // namespace transformer_engine::testing
