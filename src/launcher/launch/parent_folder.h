// SPDX-License-Identifier: Apache-2.0
// The folder of a program that started the launcher (`notebook_launcher`).
#pragma once

#include <filesystem>

namespace accelerate {

/// The empty file with which a program marks the folder as its own, so that the
/// launcher may remove it.
inline constexpr const char* kParentMark = "accelerate_parent";

/// Throws `ConfigError` unless the folder is a real folder (not a link) of this
/// user, not accessible to others, and marked.
void check_parent_folder(const std::filesystem::path& folder);

/// Removes the folder with its content, and nothing else.
void remove_parent_folder(const std::filesystem::path& folder);

} // namespace accelerate
