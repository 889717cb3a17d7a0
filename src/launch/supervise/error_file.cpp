// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/error_file.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kLongestMessage = 2000;

} // namespace

std::string read_error_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) {
    return {};
  }
  // Plain, or in the form that also holds the stack.
  const auto& outer = json["message"];
  const auto& inner =
      outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  return inner.is_string() ? inner.get<std::string>().substr(0, kLongestMessage)
                           : std::string();
}

} // namespace accelerate
