// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/step_times.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/str.h"

namespace accelerate {
namespace {

struct PhaseInfo {
  double StepTimes::Phases::*time;
  const char* name;
  /// The share from which improvement is worthwhile, and the advice.
  double much;
  const char* advice;
};

constexpr std::array<PhaseInfo, 8> kStepPhases = {{
    {&StepTimes::Phases::data,
     "waits for data",
     0.15,
     "raise num_workers, or make the dataset faster"},
    {&StepTimes::Phases::forward, "forward", 2, ""},
    {&StepTimes::Phases::backward, "backward", 2, ""},
    {&StepTimes::Phases::communication,
     "waits for other ranks",
     0.2,
     "accumulate gradients, compress them, or check whether one rank is slower "
     "than the others"},
    {&StepTimes::Phases::optimizer,
     "optimizer",
     0.3,
     "use a fused optimizer (accelerate::optim, or fused=True)"},
    {&StepTimes::Phases::checkpoint,
     "checkpoints",
     0.1,
     "save asynchronously or less often"},
    {&StepTimes::Phases::captured, "captured step", 2, ""},
    {&StepTimes::Phases::other,
     "user code",
     0.25,
     "look for slow code in the loop: .item(), logging or evaluation"},
}};

int64_t percent(double share) {
  return std::lround(share * 100);
}

} // namespace

double StepTimes::Phases::total() const {
  double sum = 0;
  for (const auto& phase : kStepPhases) {
    sum += this->*phase.time;
  }
  return sum;
}

std::string StepTimes::summary() const {
  const double total = sum.total();
  if (num_steps == 0 || total <= 0) {
    return {};
  }
  auto phases = kStepPhases;
  std::stable_sort(phases.begin(), phases.end(), [&](auto& a, auto& b) {
    return sum.*a.time > sum.*b.time;
  });
  const double milliseconds = total / static_cast<double>(num_steps) * 1e3;
  std::string text = str_cat(
      num_steps,
      num_steps == 1 ? " step of " : " steps of ",
      std::round(milliseconds * 100) / 100,
      " ms:");
  const char* before = " ";
  for (const auto& phase : phases) {
    if (const auto share = percent(sum.*phase.time / total); share > 0) {
      text += str_cat(before, share, " % ", phase.name);
      before = ", ";
    }
  }
  const auto worst =
      std::find_if(phases.begin(), phases.end(), [&](const auto& phase) {
        return sum.*phase.time >= phase.much * total;
      });
  if (worst == phases.end()) {
    return text + "\ncomputing takes most of the step";
  }
  const auto share = percent(sum.*worst->time / total);
  const bool is_wait = std::string_view(worst->name).starts_with("waits");
  return text + str_cat(
                    '\n',
                    share,
                    is_wait ? " % of the step " : " % of the step goes into ",
                    worst->name,
                    ": ",
                    worst->advice);
}

} // namespace accelerate
