// SPDX-License-Identifier: Apache-2.0
// Suggestions for misspelled paths.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate {

/// The file in the folder of `path` with the most similar name, possibly with
/// one of `endings` appended, among files with these endings. Empty if none is
/// similar.
std::string nearest_file(
    const std::filesystem::path& path,
    const std::vector<std::string>& endings);

} // namespace accelerate
