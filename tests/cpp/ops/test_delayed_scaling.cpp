// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// delayed_scaling_update against its definition, written out in FP64 on a vector per tensor, with
// every special value in every place.
#include <gtest/gtest.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/error.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "helpers/errors.h"
#include "helpers/formats.h"

namespace {

namespace te = transformer_engine;
using te::AmaxComputeAlgo;
using te::testing::expect_error;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatMax = std::numeric_limits<float>::max();

struct State {
  int64_t length = 0;
  int64_t tensors = 0;
  std::vector<float> history;  // [length, tensors]
  std::vector<float> scale;    // [tensors]

  float& at(int64_t row, int64_t tensor) {
    return history[static_cast<size_t>(row * tensors + tensor)];
  }
};

struct Rule {
  float fp8_max = 448.0F;
  float margin = 0.0F;
  AmaxComputeAlgo algo = AmaxComputeAlgo::kMax;
};

// One tensor: the definition, step by step.
void define_update(std::vector<double>& history, double& scale, double reduced, const Rule& rule) {
  const double amax = reduced == 0.0 ? history[0] : reduced;
  if (amax == 0.0) {
    return;
  }
  std::vector<double> candidates = {amax};
  if (rule.algo == AmaxComputeAlgo::kMax) {
    candidates.insert(candidates.end(), history.begin() + 1, history.end());
  }
  double largest = kNaN;  // maximum of the numbers among the candidates
  for (const double candidate : candidates) {
    largest = std::fmax(largest, candidate);
  }
  history.erase(history.begin());  // the oldest row is row 1: it becomes row 0, which is cleared
  history.push_back(amax);
  history[0] = 0.0;
  if (std::isfinite(largest) && largest > 0.0) {
    const double quotient = rule.fp8_max * std::exp2(-rule.margin) / largest;
    scale = quotient > kFloatMax ? kFloatMax : quotient;
  }
}

State expected_update(State state, const std::vector<float>* reduced, const Rule& rule) {
  for (int64_t tensor = 0; tensor < state.tensors; ++tensor) {
    std::vector<double> history;
    for (int64_t row = 0; row < state.length; ++row) {
      history.push_back(state.at(row, tensor));
    }
    const auto index = static_cast<size_t>(tensor);
    double scale = state.scale[index];
    define_update(history, scale, reduced != nullptr ? (*reduced)[index] : history[0], rule);
    for (int64_t row = 0; row < state.length; ++row) {
      state.at(row, tensor) = static_cast<float>(history[static_cast<size_t>(row)]);
    }
    state.scale[index] = static_cast<float>(scale);
  }
  return state;
}

void update(State& state, const std::vector<float>* reduced, const Rule& rule, int threads = 1) {
  te::delayed_scaling_update({.amax_history = {.data = state.history.data(),
                                               .dtype = te::DType::kFloat32,
                                               .rows = state.length,
                                               .cols = state.tensors},
                              .reduced_amax = reduced != nullptr ? reduced->data() : nullptr,
                              .scale = state.scale.data(),
                              .fp8_max = rule.fp8_max,
                              .margin = rule.margin,
                              .algo = rule.algo},
                             {.num_threads = threads});
}

void expect_same(const State& got, const State& expected) {
  for (size_t i = 0; i < expected.history.size(); ++i) {
    const bool both_nan = std::isnan(got.history[i]) && std::isnan(expected.history[i]);
    EXPECT_TRUE(both_nan || got.history[i] == expected.history[i])
        << "history " << i << ": " << got.history[i] << ", expected " << expected.history[i];
  }
  EXPECT_EQ(got.scale, expected.scale);
}

// Random values with specials strewn in.
float random_amax(std::mt19937& generator) {
  static const float specials[] = {0.0F, kNaN, HUGE_VALF, 0x1p-149F, 0x1p-140F, kFloatMax};
  const auto draw = generator() % 20;
  if (draw < std::size(specials)) {
    return specials[draw];
  }
  return std::ldexp(std::uniform_real_distribution<float>(0.5F, 1.0F)(generator),
                    static_cast<int>(generator() % 60) - 30);
}

State random_state(int64_t length, int64_t tensors, std::mt19937& generator) {
  State state{.length = length, .tensors = tensors, .history = {}, .scale = {}};
  for (int64_t i = 0; i < length * tensors; ++i) {
    state.history.push_back(random_amax(generator));
  }
  for (int64_t i = 0; i < tensors; ++i) {
    state.scale.push_back(static_cast<float>(i) + 0.5F);
  }
  return state;
}

TEST(DelayedScalingUpdate, FollowsItsDefinitionForRandomHistories) {
  std::mt19937 generator(7);
  for (const int64_t length : {1, 2, 3, 16, 1024}) {
    for (const int64_t tensors : {1, 5, 40}) {
      for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::kMax, AmaxComputeAlgo::kMostRecent}) {
        const Rule rule{.fp8_max = length % 2 == 0 ? 57344.0F : 448.0F,
                        .margin = static_cast<float>(length % 3),
                        .algo = algo};
        State state = random_state(length, tensors, generator);
        std::vector<float> reduced;
        for (int64_t i = 0; i < tensors; ++i) {
          reduced.push_back(random_amax(generator));
        }
        const State expected = expected_update(state, &reduced, rule);
        update(state, &reduced, rule, 2);
        expect_same(state, expected);
      }
    }
  }
}

TEST(DelayedScalingUpdate, UsesRowZeroWithoutAReducedAmax) {
  std::mt19937 generator(8);
  State state = random_state(6, 30, generator);
  const State expected = expected_update(state, nullptr, {});
  update(state, nullptr, {});
  expect_same(state, expected);
}

State one_tensor(std::vector<float> history, float scale = 3.0F) {
  const auto length = static_cast<int64_t>(history.size());
  return {.length = length, .tensors = 1, .history = std::move(history), .scale = {scale}};
}

void expect_update(State state, float reduced, const Rule& rule, const State& expected) {
  const std::vector<float> reduced_amax = {reduced};
  update(state, &reduced_amax, rule);
  expect_same(state, expected);
}

constexpr Rule kMostRecent = {.algo = AmaxComputeAlgo::kMostRecent};

TEST(DelayedScalingUpdate, RollsTheOldestRowOut) {
  expect_update(one_tensor({9.0F, 1.0F, 2.0F, 4.0F}), 8.0F, {},
                one_tensor({0.0F, 2.0F, 4.0F, 8.0F}, 56.0F));
}

TEST(DelayedScalingUpdate, TheMaximumIncludesTheRowThatFallsOut) {
  expect_update(one_tensor({0.0F, 7.0F, 2.0F}), 1.0F, {}, one_tensor({0.0F, 2.0F, 1.0F}, 64.0F));
  expect_update(one_tensor({0.0F, 7.0F, 2.0F}), 1.0F, kMostRecent,
                one_tensor({0.0F, 2.0F, 1.0F}, 448.0F));
}

TEST(DelayedScalingUpdate, AmaxZeroKeepsHistoryAndScale) {
  expect_update(one_tensor({0.0F, 5.0F, 2.0F}), 0.0F, {}, one_tensor({0.0F, 5.0F, 2.0F}));
  expect_update(one_tensor({0.0F, 5.0F, 2.0F}), 0.0F, kMostRecent, one_tensor({0.0F, 5.0F, 2.0F}));
}

TEST(DelayedScalingUpdate, AReducedZeroFallsBackToTheLocalRow) {
  expect_update(one_tensor({4.0F, 1.0F, 2.0F}), 0.0F, {}, one_tensor({0.0F, 2.0F, 4.0F}, 112.0F));
}

TEST(DelayedScalingUpdate, NaNIsIgnoredByTheMaximumButNotByMostRecent) {
  expect_update(one_tensor({0.0F, 2.0F, kNaN}), 1.0F, {}, one_tensor({0.0F, kNaN, 1.0F}, 224.0F));
  expect_update(one_tensor({0.0F, 2.0F, 4.0F}), kNaN, {}, one_tensor({0.0F, 4.0F, kNaN}, 112.0F));
  expect_update(one_tensor({0.0F, 2.0F, 4.0F}), kNaN, kMostRecent,
                one_tensor({0.0F, 4.0F, kNaN}, 3.0F));
}

TEST(DelayedScalingUpdate, InfinityKeepsTheScale) {
  expect_update(one_tensor({0.0F, HUGE_VALF, 4.0F}), 2.0F, {},
                one_tensor({0.0F, 4.0F, 2.0F}, 3.0F));
  expect_update(one_tensor({0.0F, 1.0F, 4.0F}), HUGE_VALF, kMostRecent,
                one_tensor({0.0F, 4.0F, HUGE_VALF}, 3.0F));
}

TEST(DelayedScalingUpdate, OverflowGivesTheLargestFiniteScale) {
  expect_update(one_tensor({0.0F, 0.0F}), 0x1p-140F, {}, one_tensor({0.0F, 0x1p-140F}, kFloatMax));
}

TEST(DelayedScalingUpdate, AHistoryOfOneRowIsOnlyCleared) {
  expect_update(one_tensor({5.0F}), 7.0F, {}, one_tensor({0.0F}, 64.0F));
}

TEST(DelayedScalingUpdate, MarginLowersTheScaleByPowersOfTwo) {
  expect_update(one_tensor({0.0F, 0.0F}), 7.0F, {.margin = 2.0F}, one_tensor({0.0F, 7.0F}, 16.0F));
}

TEST(DelayedScalingUpdate, NoTensorsIsOrdinary) {
  State state{.length = 4, .tensors = 0, .history = {}, .scale = {}};
  update(state, nullptr, {});
}

TEST(DelayedScalingUpdateRefuses, BadArguments) {
  State state = one_tensor({1.0F, 2.0F});
  const State before = state;
  expect_error<te::ValueError>([&] { update(state, nullptr, {.fp8_max = -1.0F}); },
                               {"delayed_scaling_update", "fp8_max is -1"});
  expect_error<te::ValueError>([&] { update(state, nullptr, {.margin = kNaN}); },
                               {"margin is nan"});
  const Rule unknown{.algo = static_cast<AmaxComputeAlgo>(9)};
  expect_error<te::ValueError>([&] { update(state, nullptr, unknown); }, {"algo is 9"});
  state.length = 0;
  expect_error<te::ValueError>([&] { update(state, nullptr, {}); },
                               {"amax_history has shape [0, 1]"});
  state.length = 2;
  expect_same(state, before);
  te::DelayedScalingUpdateArgs args{
      .amax_history = {.data = state.history.data(), .rows = 2, .cols = 1}};
  expect_error<te::ValueError>([&] { te::delayed_scaling_update(args, {}); }, {"scale is null"});
  args.scale = state.scale.data();
  args.amax_history.dtype = te::DType::kFloat16;
  expect_error<te::TypeError>([&] { te::delayed_scaling_update(args, {}); },
                              {"amax_history has dtype float16"});
}

}  // namespace
