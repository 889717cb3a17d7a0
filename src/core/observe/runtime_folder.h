// SPDX-License-Identifier: Apache-2.0
// Where the processes of one user find each other on a machine.
#pragma once

#include <filesystem>

#include "accelerate/process.h"
#include "core/base/internal.h"

namespace accelerate {

/// A folder that only this user can read: `accelerate` in $XDG_RUNTIME_DIR, or
/// `accelerate-UID` in /tmp. Created if missing. Throws `SystemError` if it
/// belongs to someone else, is a link, or others can read it.
ACCELERATE_INTERNAL std::filesystem::path runtime_folder(const EnvLookup& env);

/// The socket on which process `pid` listens.
ACCELERATE_INTERNAL std::filesystem::path socket_of(
    const std::filesystem::path& folder,
    int pid);

} // namespace accelerate
