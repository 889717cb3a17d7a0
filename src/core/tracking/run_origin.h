// SPDX-License-Identifier: Apache-2.0
// What started a run, for readers of its folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Whether values of this name are secrets. They are secrets if one word of the
/// name is "token", "password", "secret" or similar ("hub_token" and
/// "--api-key", but not "max_tokens" or "tokenizer").
ACCELERATE_INTERNAL bool is_secret_name(std::string_view name);

/// The arguments as a line, with `***` for values that look like secrets:
/// `--token VALUE`, `--token=VALUE`, `API_KEY=VALUE`, passwords in addresses,
/// and values that begin like the keys of known services.
ACCELERATE_INTERNAL std::string masked_command(
    const std::vector<std::string>& arguments);

/// The command line of this process, masked. Empty if /proc is not mounted.
std::string own_command();

/// The commit that is checked out in the git repository that contains `folder`,
/// as 40 or 64 digits. Empty without a repository. Starts no program.
ACCELERATE_INTERNAL std::string git_commit(std::filesystem::path folder);

} // namespace accelerate
