// SPDX-License-Identifier: Apache-2.0
// Replaces message_code.cpp in a build without libsodium.
#include "accelerate/error.h"
#include "launcher/launch/machines/message_code.h"

namespace accelerate {

std::string message_code(std::string_view, std::string_view) {
  throw ConfigError(
      "[launch] This build of accelerate lacks libsodium, which jobs on "
      "several machines need. Install libsodium-dev and build accelerate "
      "again");
}

bool is_same_code(std::string_view, std::string_view) {
  return false;
}

} // namespace accelerate
