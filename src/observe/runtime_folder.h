// SPDX-License-Identifier: Apache-2.0
// Where processes of one user find each other on one machine.
#pragma once

#include <filesystem>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// A folder that only this user can look into: `accelerate` in
/// $XDG_RUNTIME_DIR, else `accelerate-UID` in /tmp. Made where it is missing.
/// Throws `SystemError` where it belongs to somebody else, is a link, or can be
/// read by others.
ACCELERATE_API std::filesystem::path runtime_folder(const EnvLookup& env);

/// In which the process `pid` listens.
ACCELERATE_API std::filesystem::path socket_of(
    const std::filesystem::path& folder,
    int pid);

} // namespace accelerate
