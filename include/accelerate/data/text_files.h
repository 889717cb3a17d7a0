// SPDX-License-Identifier: Apache-2.0
// Datasets that read CSV and JSON Lines files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Maps column names to values. A batch of rows (`collate.h`) is a map of
/// columns: `batch["sentence"]` is a `std::vector<std::string>`.
using TextRow = std::map<std::string, std::string>;

/// The rows of one or more files. The files are mapped and validated once from
/// start to end. Rows are parsed on access. The files must not change during
/// use. Copies share the mapping, and any number of threads may read.
///
///     const auto reviews = accelerate::read_csv({"reviews.csv"});
///     const std::vector<int64_t> stars = reviews.integers("stars");
class ACCELERATE_API TextDataset {
 public:
  class Impl;
  explicit TextDataset(std::shared_ptr<const Impl> impl);

  size_t size() const;
  /// Throws `UsageError` if `index` is not below `size`.
  TextRow get(int64_t index) const;
  /// The names in the order of the file. For JSON Lines, these are the keys of
  /// the first row.
  const std::vector<std::string>& columns() const;

  /// The values of one column in all rows. Throws a `DataError` that names the
  /// file and line if a row lacks the value or if the value is not a number.
  std::vector<std::string> texts(const std::string& column) const;
  std::vector<int64_t> integers(const std::string& column) const;
  std::vector<double> numbers(const std::string& column) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

struct ACCELERATE_API CsvOptions {
  char separator = ',';
  /// Whether the first row of each file contains the column names. If false,
  /// columns are named "0", "1", ...
  bool has_header = true;
};

/// Reads CSV files as defined in RFC 4180: quoted fields may contain
/// separators, line ends and doubled quotes. Lines end with LF or CRLF. A
/// byte-order mark and empty lines are skipped. All files must have the same
/// columns. Throws `SystemError` if a file cannot be read. Throws `DataError`
/// with the file and line if a quote is missing or misplaced, if a row has more
/// or fewer fields than the first row, or if two columns have the same name.
ACCELERATE_API TextDataset read_csv(
    const std::vector<std::filesystem::path>& files,
    CsvOptions options = {});

/// Reads files with one JSON object per line. Empty lines are skipped. The
/// value of a string is its content, a number or `true` stays as written, an
/// array or object becomes JSON text without spaces, and `null` is left out. If
/// a key is duplicated, its last value is used. Throws `SystemError` if a file
/// cannot be read, and `DataError` with the file and line if a line is not a
/// JSON object in UTF-8.
ACCELERATE_API TextDataset
read_json_lines(const std::vector<std::filesystem::path>& files);

} // namespace accelerate
