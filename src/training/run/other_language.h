// SPDX-License-Identifier: Apache-2.0
// Checkpoints saved by a run in the other language.
//
// Models, optimizers, schedulers, loaders and most other objects have the same
// form in both languages. Names of objects that only Python has start with
// `python_`. Every Python run has an object named `python_parts`, which lists
// the files that Python wrote itself.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "accelerate/state/state_registry.h"
#include "training/state/state_files.h"

namespace accelerate {

/// Whether `run` is a Python run.
bool is_python(const StateRegistry& run);

/// If the checkpoint and the run have different languages, removes Python's own
/// objects from `states`, or keeps those of the run. Returns a line for the
/// user about this. Throws `UsageError` if an object of the run is in a file
/// that only Python can read.
std::optional<std::string> skip_other_language(
    const std::filesystem::path& folder,
    const StateRegistry& run,
    StatesByName& states,
    std::set<std::string>& kept);

} // namespace accelerate
