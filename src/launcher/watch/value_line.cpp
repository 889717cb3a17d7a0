// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/value_line.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace accelerate {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool skip(std::string_view wanted) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(wanted)) {
      return false;
    }
    at_ += wanted.size();
    return true;
  }
  bool key(std::string_view name) {
    std::string_view found;
    return string(found) && found == name && skip(":");
  }
  /// A string without escapes.
  bool string(std::string_view& found) {
    if (!skip("\"")) {
      return false;
    }
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' || static_cast<unsigned char>(text_[at_]) < 0x20) {
        return false;
      }
    }
    found = text_.substr(begin, at_ - begin);
    return skip("\"");
  }
  bool number(double& value, std::string_view& found) {
    skip_spaces();
    const auto rest = text_.substr(at_);
    const size_t sign = rest.starts_with('-') ? 1 : 0;
    if (rest.size() <= sign || rest[sign] < '0' || rest[sign] > '9') {
      return false;
    }
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) {
      return false;
    }
    found = rest.substr(0, static_cast<size_t>(end - rest.data()));
    at_ += found.size();
    return true;
  }
  bool is_at(char letter) {
    skip_spaces();
    return at_ < text_.size() && text_[at_] == letter;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

} // namespace

bool ValueLine::parse_fast(std::string_view line) {
  Scanner scanner(line);
  double step_number = 0;
  std::string_view ignored;
  values.clear();
  if (!scanner.skip("{") || !scanner.key("time") ||
      !scanner.number(time, time_text) || !scanner.skip(",") ||
      !scanner.key("step") || !scanner.number(step_number, ignored) ||
      !scanner.skip(",") || !scanner.key("values") || !scanner.skip("{") ||
      !is_in_range(time) || time <= 0 || !is_in_range(step_number)) {
    return false;
  }
  step = static_cast<int64_t>(step_number);
  do {
    Value value;
    if (!scanner.string(value.name) || !scanner.skip(":")) {
      return false;
    }
    if (scanner.is_at('"')) {
      if (!scanner.string(value.text)) {
        return false;
      }
      const auto number = logged_number(value.text);
      if (number) {
        value.number = *number;
        values.push_back(value);
      }
    } else if (scanner.number(value.number, value.text)) {
      values.push_back(value);
    } else {
      return false;
    }
  } while (scanner.skip(","));
  return scanner.skip("}") && scanner.skip("}");
}

bool ValueLine::take(const RunLine& line) {
  const auto* found = line.values();
  if (found == nullptr) {
    return false;
  }
  time = line.time;
  step = *line.step;
  values.clear();
  texts_.clear();
  const auto keep = [this](std::string text) -> std::string_view {
    return texts_.emplace_back(std::move(text));
  };
  time_text = keep(line.object["time"].dump());
  for (const auto& [name, value] : found->items()) {
    const auto number = value.is_string()
                            ? logged_number(value.get_ref<const std::string&>())
                            : number_of(value);
    if (number) {
      values.push_back(
          {.name = keep(name),
           .number = *number,
           .text = keep(
               value.is_string() ? value.get<std::string>() : value.dump())});
    }
  }
  return true;
}

} // namespace accelerate
