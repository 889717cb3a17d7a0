// SPDX-License-Identifier: Apache-2.0
// Paths that somebody else could lead astray.
#pragma once

#include <filesystem>

#include "accelerate/export.h"

namespace accelerate {

/// Throws `SystemError` where `path` or a folder above it is a link of another
/// user than this one and root: it could name any file of this user. Parts that
/// do not exist are no links.
ACCELERATE_API void refuse_foreign_links(const std::filesystem::path& path);

} // namespace accelerate
