// SPDX-License-Identifier: Apache-2.0
#include "training/run/step_notes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/called_names.h"

namespace accelerate {
namespace {

constexpr size_t kMostOptimizers = StepState::UpdateCounts::kMostOptimizers;

enum Word : size_t {
  kInputs,
  /// 0 if the rank replays a recorded step. It then sends no other notes.
  kIsKnown,
  kClips,
  kEmptyUpdates,
  kMissedUpdates,
  kHoldsSynchronised,
  kUpdates,
  kRates = kUpdates + kMostOptimizers,
  kNumWords = kRates + kMostOptimizers
};
static_assert(kNumWords <= kMostNotes);

/// Learning rates within this tolerance are equal, because processors round
/// differently.
constexpr double kRateTolerance = 1e-6;

bool differs(const NotesOfRanks& of_ranks, size_t word) {
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank][word] != of_ranks[0][word]) {
      return true;
    }
  }
  return false;
}

bool is_any(const NotesOfRanks& of_ranks, size_t word, int64_t value) {
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank][word] == value) {
      return true;
    }
  }
  return false;
}

bool differs_as_rate(const NotesOfRanks& of_ranks, size_t word) {
  const auto rate_of = [&](size_t rank) {
    return std::bit_cast<double>(of_ranks[rank][word]);
  };
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const double most = std::max(std::abs(rate_of(rank)), std::abs(rate_of(0)));
    if (std::abs(rate_of(rank) - rate_of(0)) > kRateTolerance * most) {
      return true;
    }
  }
  return false;
}

/// Describes a difference, e.g. "3 times on rank 1 but 4 times on ranks 0, 2".
/// The smaller set of ranks comes first.
template <class TextOf>
std::string
by_rank(const NotesOfRanks& of_ranks, size_t word, const TextOf& text_of) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    ranks_of[text_of(of_ranks[rank][word])].push_back(static_cast<int>(rank));
  }
  std::vector<std::pair<std::string, std::vector<int>>> sorted(
      ranks_of.begin(), ranks_of.end());
  std::stable_sort(
      sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      });
  std::string text;
  for (const auto& [value, ranks] : sorted) {
    text += text.empty() ? "" : ranks == sorted.back().second ? " but " : ", ";
    text += str_cat(value, " on ", name_ranks(ranks));
  }
  return text;
}

std::string times(int64_t count) {
  return str_cat(count, count == 1 ? " time" : " times");
}

std::string name_of(const OptimizerNumbers& optimizers, size_t index) {
  const int number = optimizers.of_index[index];
  return number == 0             ? "an optimizer of another Accelerator"
         : optimizers.count == 1 ? "the optimizer"
                                 : str_cat("optimizer ", number);
}

} // namespace

Notes StepNotes::encode() const {
  Notes notes(kUpdates);
  notes[kInputs] = inputs;
  notes[kIsKnown] = 1;
  notes[kClips] = update_counts.clips;
  notes[kEmptyUpdates] = update_counts.empty_updates;
  notes[kMissedUpdates] = missed_updates;
  notes[kHoldsSynchronised] = holds_synchronised;
  notes.insert(
      notes.end(), update_counts.updates.begin(), update_counts.updates.end());
  for (const double rate : learning_rates) {
    notes.push_back(std::bit_cast<int64_t>(rate));
  }
  return notes;
}

std::vector<int64_t> StepNotes::inputs_of(const NotesOfRanks& of_ranks) {
  std::vector<int64_t> inputs;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    inputs.push_back(of_ranks[rank][kInputs]);
  }
  return inputs;
}

void check_steps(
    const NotesOfRanks& of_ranks,
    const OptimizerNumbers& optimizers) {
  if (is_any(of_ranks, kIsKnown, 0)) {
    return;
  }
  constexpr const char* kRemedy =
      ", so their weights now differ. Call it on all ranks or on none. "
      "load_state() makes the weights equal again";
  for (size_t i = 0; i < kMostOptimizers; ++i) {
    if (differs(of_ranks, kUpdates + i)) {
      throw MismatchError(str_cat(
          "[backward] Ranks called step() of ",
          name_of(optimizers, i),
          " a different number of times: ",
          by_rank(of_ranks, kUpdates + i, times),
          kRemedy));
    }
  }
  if (differs(of_ranks, kEmptyUpdates)) {
    throw MismatchError(str_cat(
        "[backward] Ranks called step() after zero_grad() a different number "
        "of times: ",
        by_rank(of_ranks, kEmptyUpdates, times),
        ", so their weights differ. Call zero_grad() on all ranks or on none. "
        "load_state() makes the weights equal again"));
  }
  if (differs(of_ranks, kClips)) {
    throw MismatchError(str_cat(
        "[backward] Ranks clipped gradients a different number of times: ",
        by_rank(of_ranks, kClips, times),
        kRemedy));
  }
  if (differs(of_ranks, kMissedUpdates)) {
    throw MismatchError(str_cat(
        "[backward] Ranks skipped backward() at the end of gradient "
        "accumulation a different number of times: ",
        by_rank(of_ranks, kMissedUpdates, times),
        ", so they accumulate different micro-batches. Skip a micro-batch on "
        "all ranks or on none. load_state() makes the ranks equal again"));
  }
  for (size_t i = 0; i < kMostOptimizers; ++i) {
    if (differs_as_rate(of_ranks, kRates + i)) {
      throw MismatchError(str_cat(
          "[backward] The learning rates of ",
          name_of(optimizers, i),
          " differ between ranks: ",
          by_rank(
              of_ranks,
              kRates + i,
              [](int64_t word) {
                return str_cat(std::bit_cast<double>(word));
              }),
          " (the sum over its groups). Call the scheduler's step() on all "
          "ranks, with the same metric"));
    }
  }
  if (is_any(of_ranks, kHoldsSynchronised, StepNotes::kUnknown)) {
    return;
  }
  for (size_t i = 0; i < kMostOptimizers; ++i) {
    const auto holds = [&](int64_t held) { return (held >> i) % 2 == 1; };
    bool is_equal = true;
    for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
      is_equal = is_equal && holds(of_ranks[rank][kHoldsSynchronised]) ==
                                 holds(of_ranks[0][kHoldsSynchronised]);
    }
    if (!is_equal) {
      throw MismatchError(str_cat(
          "[backward] zero_grad() of ",
          name_of(optimizers, i),
          " was called between the last two backward passes on some ranks "
          "only: ",
          by_rank(
              of_ranks,
              kHoldsSynchronised,
              [&](int64_t held) { return holds(held) ? "not" : "called"; }),
          ". Call it on all ranks or on none"));
    }
  }
}

} // namespace accelerate
