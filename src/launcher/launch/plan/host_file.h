// SPDX-License-Identifier: Apache-2.0
// Files that list the machines of a run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

struct ACCELERATE_INTERNAL HostEntry {
  /// The host in ssh's notation: `name` or `user@name`.
  std::string name = {};
  /// Processes on this host, from `slots=N`.
  std::optional<int> slots = {};

  /// The host without the user.
  std::string address() const { return name.substr(name.find('@') + 1); }
  bool operator==(const HostEntry&) const = default;
};

/// One host per line, `#` comments and `slots=N` (Open MPI's format). Throws a
/// `ConfigError` that names `path` and the line if the text is malformed, or if
/// it names no host or too many.
ACCELERATE_INTERNAL std::vector<HostEntry> parse_host_file(
    std::string_view text,
    const std::string& path);

} // namespace accelerate
