// SPDX-License-Identifier: Apache-2.0
// Error files of workers.
#pragma once

#include <filesystem>
#include <string>

namespace accelerate {

/// The message in a TORCHELASTIC_ERROR_FILE, which PyTorch's `record` writes.
/// Empty if there is none. Never throws.
std::string read_error_file(const std::filesystem::path& file);

} // namespace accelerate
