// SPDX-License-Identifier: Apache-2.0
// Checkpoints that a run in the other language has saved.
//
// Models, optimizers, schedulers, loaders and the rest of a run have one form
// in both. What only Python can hold are objects whose names begin with
// `python_`; every run in Python has one named `python_parts`, which lists the
// files that Python wrote by itself.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "accelerate/state_registry.h"
#include "state/state_files.h"

namespace accelerate {

/// Whether the run is one of Python's.
bool is_python(const StateRegistry& run);

/// Where the checkpoint and the run are of two languages, takes Python's own
/// objects out of `states`, or adds them to those that the run is to keep.
/// Returns a line that says so. Throws `UsageError` where an object that the
/// run has is in a file that only Python reads.
std::optional<std::string> leave_other_language(
    const std::filesystem::path& folder,
    const StateRegistry& run,
    StatesByName& states,
    std::set<std::string>& kept);

} // namespace accelerate
