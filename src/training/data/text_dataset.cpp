// SPDX-License-Identifier: Apache-2.0
#include "training/data/text_dataset.h"

#include <charconv>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/words.h"

namespace accelerate {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// The value of `column` in every row, converted by `convert(text, place)`.
template <class T, class F>
std::vector<T> column_of(
    const TextDataset::Impl& data,
    const std::string& column,
    F&& convert) {
  std::vector<T> values;
  values.reserve(data.rows.size());
  for (const auto& position : data.rows) {
    TextRow row = data.read(position);
    const auto found = row.find(column);
    if (found == row.end()) {
      position.file->fail(
          position.line,
          str_cat("The row has no value for column '", column, "'"));
    }
    values.push_back(convert(found->second, position));
  }
  return values;
}

template <class T>
std::vector<T> number_column(
    const TextDataset::Impl& data,
    const std::string& column,
    const char* kind) {
  return column_of<T>(
      data, column, [&](const auto& text, const auto& position) {
        const auto digits = trimmed(text, " \t");
        T value{};
        const auto [end, error] = std::from_chars(
            digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc() || end != digits.data() + digits.size()) {
          position.file->fail(
              position.line,
              str_cat(
                  "Column '",
                  column,
                  "' is '",
                  text.substr(0, 60),
                  "', expected ",
                  kind));
        }
        return value;
      });
}

} // namespace

MappedText::MappedText(const std::filesystem::path& path, const char* where)
    : path_(path), where_(where), mapping_(path, where, "text file") {
  text_ = {
      reinterpret_cast<const char*>(mapping_.bytes().data()),
      mapping_.bytes().size()};
  if (text_.starts_with(kByteOrderMark)) {
    text_.remove_prefix(kByteOrderMark.size());
  }
}

void MappedText::fail(size_t line, const std::string& what) const {
  throw DataError(
      str_cat("[", where_, "] ", path_.string(), ":", line, ": ", what));
}

TextDataset::TextDataset(std::shared_ptr<const Impl> impl)
    : impl_(std::move(impl)) {}

size_t TextDataset::size() const {
  return impl_->rows.size();
}

TextRow TextDataset::get(int64_t index) const {
  if (index < 0 || index >= static_cast<int64_t>(size())) {
    throw UsageError(str_cat(
        "[TextDataset] row is ",
        index,
        ", but the dataset has ",
        size(),
        " rows"));
  }
  return impl_->read(impl_->rows[static_cast<size_t>(index)]);
}

const std::vector<std::string>& TextDataset::columns() const {
  return impl_->columns;
}

std::vector<std::string> TextDataset::texts(const std::string& column) const {
  return column_of<std::string>(
      *impl_, column, [](std::string& text, const auto&) {
        return std::move(text);
      });
}

std::vector<int64_t> TextDataset::integers(const std::string& column) const {
  return number_column<int64_t>(*impl_, column, "an integer");
}

std::vector<double> TextDataset::numbers(const std::string& column) const {
  return number_column<double>(*impl_, column, "a number");
}

} // namespace accelerate
