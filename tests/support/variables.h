// SPDX-License-Identifier: Apache-2.0
// Environment variables defined by a test.
#pragma once

#include <map>
#include <string>

#include "accelerate/process.h"

namespace accelerate::testing {

using Variables = std::map<std::string, std::string>;

inline EnvLookup lookup(Variables values) {
  return [values = std::move(values)](
             const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

} // namespace accelerate::testing
