// SPDX-License-Identifier: Apache-2.0
// Lists folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::safetensors {

/// The names in a folder, sorted. Throws `SystemError`.
std::vector<std::string> names_in(const std::filesystem::path& folder);

} // namespace accelerate::safetensors
