// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "core/base/str.h"
#include "core/base/words.h"
#include "core/config/prompter.h"

namespace accelerate {
namespace {

class PlainPrompter : public Prompter {
 public:
  PlainPrompter(std::istream& in, std::ostream& out) : in_(in), out_(out) {}

  size_t choose(
      const std::string& question,
      const std::vector<std::string>& options,
      size_t preset) override {
    out_ << question << '\n';
    for (size_t i = 0; i < options.size(); ++i) {
      out_ << "  " << i << ") " << options[i] << '\n';
    }
    while (true) {
      const std::string answer = ask("Number or text", std::to_string(preset));
      for (size_t i = 0; i < options.size(); ++i) {
        if (answer == options[i] || answer == std::to_string(i)) {
          return i;
        }
      }
      say(str_cat("Please enter a number from 0 to ", options.size() - 1, "."));
    }
  }

  std::string ask(const std::string& question, const std::string& preset)
      override {
    out_ << question << (preset.empty() ? "" : " [" + preset + "]") << ": "
         << std::flush;
    std::string line;
    if (!std::getline(in_, line)) {
      out_ << '\n';
      throw ConfigError(
          "[config] The input ended before all questions were answered. "
          "Nothing was written");
    }
    const std::string answer(trimmed(line, " \t\r\n"));
    return answer.empty() ? preset : answer;
  }

  void say(const std::string& line) override { out_ << line << std::endl; }

 private:
  std::istream& in_;
  std::ostream& out_;
};

} // namespace

std::unique_ptr<Prompter> make_plain_prompter(
    std::istream& in,
    std::ostream& out) {
  return std::make_unique<PlainPrompter>(in, out);
}

} // namespace accelerate
