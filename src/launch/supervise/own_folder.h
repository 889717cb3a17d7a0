// SPDX-License-Identifier: Apache-2.0
// Folders that nobody else can lead astray.
#pragma once

#include <filesystem>

#include "accelerate/export.h"
#include "base/unique_file.h"

namespace accelerate {

/// The folder `path`, which is absolute, for openat(2) and its kin; what is
/// missing is made. Throws `SystemError` where that cannot be, and where `path`
/// or a folder above it is a link of another user than this one and root: it
/// could name any file of this user. What was looked at is what is opened,
/// whatever somebody exchanges meanwhile.
ACCELERATE_API UniqueFile open_own_folder(const std::filesystem::path& path);

/// What helps where a log cannot be made for `cause`, as in errno.
ACCELERATE_API const char* way_out_for_logs(int cause);

} // namespace accelerate
