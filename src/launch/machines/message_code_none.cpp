// SPDX-License-Identifier: Apache-2.0
// Stands in for message_code.cpp in a build without libsodium.
#include "accelerate/error.h"
#include "launch/machines/message_code.h"

namespace accelerate {

std::string message_code(std::string_view, std::string_view) {
  throw ConfigError(
      "[launch] this accelerate was built without libsodium, which several "
      "machines need to know each other; install libsodium-dev and build it "
      "again");
}

bool is_same_code(std::string_view, std::string_view) {
  return false;
}

} // namespace accelerate
