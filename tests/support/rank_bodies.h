// SPDX-License-Identifier: Apache-2.0
// One piece of test code run by several ranks: as threads or as processes.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "accelerate/accelerator.h"
#include "support/subprocess.h"

namespace accelerate::testing {

/// What one rank does; the text it returns is what the test looks at.
using RankBody = std::function<std::string(const AcceleratorOptions&)>;

/// Registers a body under a name, before `main`:
///
///     const RankBodyRegistration kTrain(
///         "train", [](const AcceleratorOptions& options) { ... });
class RankBodyRegistration {
 public:
  RankBodyRegistration(const std::string& name, RankBody body);
};

enum class RankKind { kThreads, kProcesses };
std::ostream& operator<<(std::ostream& out, RankKind kind);

/// Runs a body as `num_ranks` ranks; their texts in rank order. Throws where a
/// rank fails.
std::vector<std::string>
run_body(RankKind kind, int num_ranks, const std::string& name);

/// As processes only, started by `accelerate launch`: how it ended.
ProcessResult launch_body(int num_ranks, const std::string& name);

/// Floats as text that reads back to the same bits, and back.
std::string to_text(const at::Tensor& tensor);
at::Tensor from_text(const std::string& text);

} // namespace accelerate::testing
