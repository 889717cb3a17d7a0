// SPDX-License-Identifier: Apache-2.0
// CSV and JSON lines as data sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Values by name of the column. A batch of them (`collate.h`) is a map of
/// columns: `batch["sentence"]` is a `std::vector<std::string>`.
using TextRow = std::map<std::string, std::string>;

/// Rows of one or more files. The files are mapped and checked once from front
/// to back; rows are read when asked for. They must not change while they are
/// in use. Copies share the mapping; any number of threads may read.
///
///     const auto reviews = accelerate::read_csv({"reviews.csv"});
///     const std::vector<int64_t> stars = reviews.integers("stars");
class ACCELERATE_API TextDataset {
 public:
  class Impl;
  explicit TextDataset(std::shared_ptr<const Impl> impl);

  size_t size() const;
  /// Throws `UsageError` outside of `size`.
  TextRow get(int64_t index) const;
  /// Names in the order of the file; of JSON lines, those of the first row.
  const std::vector<std::string>& columns() const;

  /// One column of all rows. Throws `DataError`, which names file and line,
  /// where a row has no such value or it is not a number.
  std::vector<std::string> texts(const std::string& column) const;
  std::vector<int64_t> integers(const std::string& column) const;
  std::vector<double> numbers(const std::string& column) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

struct ACCELERATE_API CsvOptions {
  char separator = ',';
  /// The first row of each file names the columns; otherwise they are named
  /// "0", "1", ...
  bool has_header = true;
};

/// CSV as in RFC 4180: a field in quotes may hold separators, line ends and
/// doubled quotes. Lines end with LF or CRLF; a byte-order mark and empty lines
/// are passed over. All files must have the same columns. Throws `SystemError`
/// where a file cannot be read, and `DataError` with file and line where a
/// quote is missing or misplaced, a row has more or fewer fields than the
/// first, or two columns have one name.
ACCELERATE_API TextDataset read_csv(
    const std::vector<std::filesystem::path>& files,
    CsvOptions options = {});

/// One JSON object per line; empty lines are passed over. A string is its text,
/// a number or `true` is as it was written, an array or object its JSON text
/// without spaces, `null` is left out. Of two equal keys the last one counts.
/// Throws `SystemError` where a file cannot be read, and `DataError` with file
/// and line where a line is not JSON in UTF-8 or no object.
ACCELERATE_API TextDataset
read_json_lines(const std::vector<std::filesystem::path>& files);

} // namespace accelerate
