// SPDX-License-Identifier: Apache-2.0
// Opens folders in a way that other users cannot manipulate.
#pragma once

#include <filesystem>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// Opens the folder with the absolute path `path`, for openat(2) and similar
/// functions. Creates missing folders. Throws `SystemError` if that fails, or
/// if `path` or a folder above it is a link of another user (except root),
/// which could point to any file of this user. The folder that is checked is
/// the one that is opened, even if another process replaces it meanwhile.
ACCELERATE_INTERNAL UniqueFile
open_own_folder(const std::filesystem::path& path);

/// A hint for a log that cannot be created because of the errno `cause`.
const char* hint_for_logs(int cause);

} // namespace accelerate
