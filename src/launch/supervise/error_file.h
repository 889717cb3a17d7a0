// SPDX-License-Identifier: Apache-2.0
// What a worker wrote down about its own failure.
#pragma once

#include <filesystem>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// The message in a file of TORCHELASTIC_ERROR_FILE's form, which PyTorch's
/// `record` writes; empty where there is none. Never throws.
ACCELERATE_API std::string read_error_file(const std::filesystem::path& file);

} // namespace accelerate
