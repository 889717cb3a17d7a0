// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/text_dataset.h"

namespace accelerate {
namespace {

using nlohmann::json;

// Builds a row from the parser events of one line. Nested values are serialised
// directly, without a tree, so that deep nesting does not overflow the stack.
class RowEvents final : public nlohmann::json_sax<json> {
 public:
  bool null() override {
    if (depth_ == 1) {
      row.erase(key_);
      return true;
    }
    return plain("null");
  }
  bool boolean(bool value) override { return plain(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return plain(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return plain(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return plain(text);
  }
  bool string(string_t& value) override {
    return depth_ == 1 ? plain(value) : plain(json(value).dump());
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open('{'); }
  bool end_object() override { return close('}'); }
  bool start_array(std::size_t) override { return open('['); }
  bool end_array() override { return close(']'); }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      key_ = value;
      if (std::find(keys.begin(), keys.end(), value) == keys.end()) {
        keys.push_back(value);
      }
    } else {
      separate();
      nested_ += json(value).dump() + ":";
      is_after_key_ = true;
    }
    return true;
  }
  bool parse_error(
      std::size_t,
      const std::string&,
      const json::exception& error) override {
    problem = error.what();
    return false;
  }

  TextRow row;
  std::vector<std::string> keys;
  std::string problem;

 private:
  bool plain(const std::string& text) {
    if (depth_ == 0) {
      problem = kNoObject;
      return false;
    }
    if (depth_ == 1) {
      row[key_] = text;
    } else {
      separate();
      nested_ += text;
    }
    return true;
  }
  bool open(char bracket) {
    if (depth_ == 0) {
      problem = bracket == '{' ? "" : kNoObject;
    } else {
      separate();
      nested_ += bracket;
    }
    ++depth_;
    return problem.empty();
  }
  bool close(char bracket) {
    --depth_;
    if (depth_ > 0) {
      nested_ += bracket;
    }
    if (depth_ == 1) {
      row[key_] = std::exchange(nested_, {});
    }
    return true;
  }
  // Appends a comma, unless an opening bracket or a key precedes.
  void separate() {
    if (!is_after_key_ && !nested_.empty() && nested_.back() != '[' &&
        nested_.back() != '{') {
      nested_ += ',';
    }
    is_after_key_ = false;
  }

  static constexpr const char* kNoObject = "The line is not an object";
  std::string key_;
  std::string nested_;
  bool is_after_key_ = false;
  std::size_t depth_ = 0;
};

std::string_view line_at(const MappedText& file, size_t offset) {
  const auto text = file.text().substr(offset);
  return text.substr(0, text.find('\n'));
}

// The library's message without the library's name and the position "line 1".
std::string shorter(const std::string& problem) {
  const size_t colon = problem.find(": ");
  return colon == std::string::npos ? problem : problem.substr(colon + 2);
}

class JsonRows final : public TextDataset::Impl {
 public:
  void add(const std::filesystem::path& path) {
    files.push_back(std::make_unique<MappedText>(path, "read_json_lines"));
    const MappedText& file = *files.back();
    size_t line_number = 1;
    for (size_t at = 0; at < file.text().size(); ++line_number) {
      const auto line = line_at(file, at);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        const RowPosition position{&file, at, line_number};
        const auto events = parse(position);
        if (rows.empty()) {
          columns = events.keys;
        }
        rows.push_back(position);
      }
      at += line.size() + 1;
    }
  }

  TextRow read(const RowPosition& position) const override {
    return parse(position).row;
  }

 private:
  static RowEvents parse(const RowPosition& position) {
    const auto line = line_at(*position.file, position.offset);
    RowEvents events;
    if (!json::sax_parse(line.begin(), line.end(), &events)) {
      position.file->fail(
          position.line,
          str_cat(shorter(events.problem), ". Write one JSON object per line"));
    }
    return events;
  }
};

} // namespace

TextDataset read_json_lines(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) {
    throw UsageError(
        "[read_json_lines] No file was passed. Pass at least one path");
  }
  auto rows = std::make_shared<JsonRows>();
  for (const auto& file : files) {
    rows->add(file);
  }
  return TextDataset(std::move(rows));
}

} // namespace accelerate
