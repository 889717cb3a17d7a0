// SPDX-License-Identifier: Apache-2.0
// What a misspelt path was probably meant to be.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The file beside `path` whose name is most like it, or like it with one of
/// `endings`, among files with these endings; empty if none is.
ACCELERATE_API std::string nearest_file(
    const std::filesystem::path& path,
    const std::vector<std::string>& endings);

} // namespace accelerate
