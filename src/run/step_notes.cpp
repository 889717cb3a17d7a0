// SPDX-License-Identifier: Apache-2.0
#include "run/step_notes.h"

#include <algorithm>
#include <map>
#include <string>

#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"
#include "observe/called_names.h"

namespace accelerate {
namespace {

enum Word : size_t {
  kInputs,
  /// 0 of a rank that replays a recorded step, and says nothing else.
  kIsKnown,
  kClips,
  kUpdates
};
static_assert(kUpdates + StepState::Shared::kMostOptimizers <= kMostNotes);

using OfRanks = std::vector<std::vector<int64_t>>;

bool differs(const OfRanks& of_ranks, size_t word) {
  return std::any_of(of_ranks.begin(), of_ranks.end(), [&](const auto& notes) {
    return notes[word] != of_ranks[0][word];
  });
}

/// "3 times on rank 1 but 4 times on ranks 0, 2". Fewer ranks come first.
std::string
by_rank(const OfRanks& of_ranks, size_t word, const std::string& unit) {
  std::map<int64_t, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    ranks_of[of_ranks[rank][word]].push_back(static_cast<int>(rank));
  }
  std::vector<std::pair<int64_t, std::vector<int>>> sorted(
      ranks_of.begin(), ranks_of.end());
  std::stable_sort(
      sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      });
  std::string text;
  for (const auto& [count, ranks] : sorted) {
    text += text.empty() ? "" : ranks == sorted.back().second ? " but " : ", ";
    text += str_cat(
        count, ' ', unit, count == 1 ? "" : "s", " on ", name_ranks(ranks));
  }
  return text;
}

} // namespace

std::vector<int64_t> StepNotes::encode() const {
  std::vector<int64_t> notes(kUpdates);
  notes[kInputs] = inputs;
  notes[kIsKnown] = 1;
  notes[kClips] = shared.clips;
  notes.insert(notes.end(), shared.updates.begin(), shared.updates.end());
  return notes;
}

std::vector<int64_t> StepNotes::inputs_of(const OfRanks& of_ranks) {
  std::vector<int64_t> inputs;
  for (const auto& notes : of_ranks) {
    inputs.push_back(notes[kInputs]);
  }
  return inputs;
}

void check_steps(const OfRanks& of_ranks, size_t num_optimizers) {
  if (std::any_of(of_ranks.begin(), of_ranks.end(), [](const auto& notes) {
        return notes[kIsKnown] == 0;
      })) {
    return;
  }
  constexpr const char* kRemedy =
      ", so their weights now differ. Call it on all ranks or on none. "
      "load_state() makes the weights equal again";
  for (size_t i = 0; i < StepState::Shared::kMostOptimizers; ++i) {
    if (differs(of_ranks, kUpdates + i)) {
      throw MismatchError(str_cat(
          "[backward] Ranks called step() of ",
          num_optimizers == 1 ? "the optimizer" : str_cat("optimizer ", i + 1),
          " a different number of times: ",
          by_rank(of_ranks, kUpdates + i, "time"),
          kRemedy));
    }
  }
  if (differs(of_ranks, kClips)) {
    throw MismatchError(str_cat(
        "[backward] Ranks clipped gradients a different number of times: ",
        by_rank(of_ranks, kClips, "time"),
        kRemedy));
  }
}

} // namespace accelerate
