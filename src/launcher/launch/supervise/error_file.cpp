// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "core/base/unique_file.h"

namespace accelerate {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kLongestMessage = 2000;

// Returns an empty string if `path` is not a regular file. Workers may create
// anything there, and reading a pipe or a device could block forever.
std::string read_plain_file(const std::filesystem::path& path) {
  const UniqueFile file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return {};
  }
  std::string text(kMostBytes, '\0');
  size_t size = 0;
  ssize_t count = 0;
  while (size < text.size() &&
         (count = read(file.get(), text.data() + size, text.size() - size)) >
             0) {
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return text;
}

} // namespace

std::string read_error_file(const std::filesystem::path& file) {
  const std::string text = read_plain_file(file);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) {
    return {};
  }
  // The message is either plain text, or an object that also contains the
  // stack.
  const auto& outer = json["message"];
  const auto& inner =
      outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  return inner.is_string() ? inner.get<std::string>().substr(0, kLongestMessage)
                           : std::string();
}

} // namespace accelerate
