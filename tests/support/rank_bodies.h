// SPDX-License-Identifier: Apache-2.0
// Test code run by several ranks: as threads or as processes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "accelerate/accelerator.h"
#include "support/subprocess.h"

namespace accelerate::testing {

/// The code of one rank; the test checks the text it returns.
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

/// Environment variables of rank processes.
using Variables = std::map<std::string, std::string>;

/// Runs a body as `num_ranks` ranks and returns their texts in rank order.
/// Throws if a rank fails. Threads ignore `variables`.
std::vector<std::string> run_body(
    RankKind kind,
    int num_ranks,
    const std::string& name,
    const Variables& variables = {});

/// Runs a body as processes of `accelerate launch` and returns how it ended.
ProcessResult launch_body(
    int num_ranks,
    const std::string& name,
    const Variables& variables = {});

/// In a process of a launched body: a folder that its ranks share, removed when
/// they have ended.
std::optional<std::filesystem::path> folder_of_ranks();

/// Floats as text that reads back to the same bits, and the reverse.
std::string to_text(const at::Tensor& tensor);
at::Tensor from_text(const std::string& text);

} // namespace accelerate::testing
