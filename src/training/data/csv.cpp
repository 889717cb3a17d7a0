// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/text_dataset.h"

namespace accelerate {
namespace {

// Reads the records of a file in order.
class CsvReader {
 public:
  CsvReader(
      const MappedText& file,
      char separator,
      size_t offset = 0,
      size_t line = 1)
      : file_(file),
        text_(file.text()),
        separator_(separator),
        at_(offset),
        line_(line) {}

  /// Skips empty lines; false at the end of the file.
  bool find_record() {
    while (at_ < text_.size() && skip_line_end()) {
    }
    return at_ < text_.size();
  }
  size_t offset() const { return at_; }
  size_t line() const { return line_; }

  /// The fields of the record that starts at the current position.
  const std::vector<std::string>& read_record() {
    first_line_ = line_;
    size_t count = 0;
    do {
      if (count == fields_.size()) {
        fields_.emplace_back();
      }
      fields_[count].clear();
      read_field(fields_[count++]);
    } while (skip(separator_));
    fields_.resize(count);
    if (at_ < text_.size() && !skip_line_end()) {
      fail(str_cat(
          "'",
          text_[at_],
          "' follows a quoted field. Put a separator or a line break after the "
          "closing quote, and double each quote inside the field"));
    }
    return fields_;
  }

 private:
  void read_field(std::string& field) {
    if (skip('"')) {
      read_quoted(field);
      return;
    }
    const size_t first = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && !at_line_end()) {
      if (text_[at_] == '"') {
        fail("A quote appears inside an unquoted field. Quote the whole field");
      }
      ++at_;
    }
    field.assign(text_.substr(first, at_ - first));
  }

  void read_quoted(std::string& field) {
    for (;;) {
      const size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        line_ = first_line_;
        fail(
            "A quoted field in this record is never closed. Add a quote at its "
            "end");
      }
      const auto chunk = text_.substr(at_, quote - at_);
      line_ +=
          static_cast<size_t>(std::count(chunk.begin(), chunk.end(), '\n'));
      field.append(chunk);
      at_ = quote + 1;
      if (!skip('"')) {
        return;
      }
      field.push_back('"');
    }
  }

  bool skip(char expected) {
    if (at_ == text_.size() || text_[at_] != expected) {
      return false;
    }
    ++at_;
    return true;
  }
  // A lone carriage return is part of a field.
  bool at_line_end() const {
    return text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n";
  }
  bool skip_line_end() {
    if (!at_line_end()) {
      return false;
    }
    at_ += text_[at_] == '\n' ? 1 : 2;
    ++line_;
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const {
    file_.fail(line_, what);
  }

  const MappedText& file_;
  std::string_view text_;
  char separator_;
  size_t at_;
  size_t line_;
  size_t first_line_ = 1;
  std::vector<std::string> fields_;
};

class CsvRows final : public TextDataset::Impl {
 public:
  explicit CsvRows(CsvOptions options) : options_(options) {}

  void add(const std::filesystem::path& path) {
    files.push_back(std::make_unique<MappedText>(path, "read_csv"));
    const MappedText& file = *files.back();
    CsvReader reader(file, options_.separator);
    bool at_header = options_.has_header;
    if (at_header && !reader.find_record()) {
      file.fail(
          1,
          "The file is empty, but its first row must contain the column names");
    }
    while (reader.find_record()) {
      const RowPosition position{&file, reader.offset(), reader.line()};
      const auto& fields = reader.read_record();
      if (at_header) {
        read_header(position, fields);
        at_header = false;
        continue;
      }
      for (size_t i = 0;
           rows.empty() && i < fields.size() && !options_.has_header;
           ++i) {
        columns.push_back(std::to_string(i));
      }
      if (fields.size() != columns.size()) {
        file.fail(
            position.line,
            str_cat(
                "This row has ",
                fields.size(),
                " fields, but the first row has ",
                columns.size()));
      }
      rows.push_back(position);
    }
  }

  TextRow read(const RowPosition& position) const override {
    CsvReader reader(
        *position.file, options_.separator, position.offset, position.line);
    const auto& fields = reader.read_record();
    TextRow row;
    for (size_t i = 0; i < columns.size(); ++i) {
      row.emplace(columns[i], fields[i]);
    }
    return row;
  }

 private:
  void read_header(
      const RowPosition& position,
      const std::vector<std::string>& names) {
    if (files.size() > 1 && names != columns) {
      position.file->fail(
          position.line,
          "The column names differ from those of the first file. Use the same "
          "columns in all files");
    }
    columns = names;
    for (auto name = names.begin(); name != names.end(); ++name) {
      if (std::find(names.begin(), name, *name) != name) {
        position.file->fail(
            position.line, str_cat("Two columns are named '", *name, "'"));
      }
    }
  }

  CsvOptions options_;
};

} // namespace

TextDataset read_csv(
    const std::vector<std::filesystem::path>& files,
    CsvOptions options) {
  const char separator = options.separator;
  if (files.empty()) {
    throw UsageError(
        "[read_csv] The list of files is empty. Pass at least one file");
  }
  if (separator == '"' || separator == '\n' || separator == '\r') {
    throw UsageError(str_cat(
        "[read_csv] The separator has character code ",
        static_cast<int>(separator),
        ". Pass a character that is not a quote or a line break"));
  }
  auto rows = std::make_shared<CsvRows>(options);
  for (const auto& file : files) {
    rows->add(file);
  }
  return TextDataset(std::move(rows));
}

} // namespace accelerate
