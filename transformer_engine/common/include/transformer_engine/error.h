// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Errors a caller can cause. Each class maps to the Python exception of the same name in the
// binding. Messages read
// `<op>: <argument> <what was received>; <rule>. <what to do>.`
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace transformer_engine {

class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class TypeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class NotImplementedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace transformer_engine

// Both need at least one message part: a check without a message does not compile.
#define TE_CHECK_AS(ErrorType, condition, first, ...)                      \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      throw ::transformer_engine::ErrorType(                               \
          ::transformer_engine::concat(first __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                      \
  } while (false)
#define TE_CHECK(condition, first, ...) \
  TE_CHECK_AS(ValueError, condition, first __VA_OPT__(, ) __VA_ARGS__)
#define TE_CHECK_TYPE(condition, first, ...) \
  TE_CHECK_AS(TypeError, condition, first __VA_OPT__(, ) __VA_ARGS__)
