// SPDX-License-Identifier: Apache-2.0
// Versions of Python packages, without importing them.
#pragma once

#include <string>
#include <vector>

namespace accelerate {

/// The versions of `names` as `python` (a path, or a name on the PATH) would
/// import them, in order. Empty for a package that is not installed. Reads the
/// packages' metadata. Starts the interpreter only if the package folder is not
/// where virtual environments have it.
std::vector<std::string> package_versions(
    const std::string& python,
    const std::vector<std::string>& names);

/// The first line of a shell command's output. Empty if it fails.
std::string first_line_of(const std::string& command);

} // namespace accelerate
