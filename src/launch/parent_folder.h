// SPDX-License-Identifier: Apache-2.0
// The folder of a program that started the launcher (`notebook_launcher`).
#pragma once

#include <filesystem>

#include "accelerate/export.h"

namespace accelerate {

/// The empty file by which a program says that the folder is its own, and that
/// the launcher may remove it.
inline constexpr const char* kParentMark = "accelerate_parent";

/// Throws `ConfigError` unless the folder is a real one (no link) of this user,
/// open to nobody else, and marked.
ACCELERATE_API void check_parent_folder(const std::filesystem::path& folder);

/// Removes it with all that it holds; leaves everything else alone.
ACCELERATE_API void remove_parent_folder(const std::filesystem::path& folder);

} // namespace accelerate
