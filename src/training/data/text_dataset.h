// SPDX-License-Identifier: Apache-2.0
// The rows of text files: their positions, and how to parse them.
#pragma once

#include <memory>
#include <string_view>

#include "accelerate/data/text_files.h"
#include "core/base/mapped_file.h"

namespace accelerate {

/// One mapped text file. Error messages name it.
class MappedText {
 public:
  MappedText(const std::filesystem::path& path, const char* where);

  /// The text without its byte-order mark.
  std::string_view text() const { return text_; }
  /// Throws `DataError`: `[where] path:line: what`.
  [[noreturn]] void fail(size_t line, const std::string& what) const;

 private:
  std::filesystem::path path_;
  const char* where_;
  MappedFile mapping_;
  std::string_view text_;
};

/// The positions of rows in files. Each format parses the bytes at a position.
class TextDataset::Impl {
 public:
  virtual ~Impl() = default;

  struct RowPosition {
    const MappedText* file;
    size_t offset;
    size_t line;
  };
  virtual TextRow read(const RowPosition& position) const = 0;

  std::vector<std::unique_ptr<const MappedText>> files;
  std::vector<RowPosition> rows;
  std::vector<std::string> columns;
};

} // namespace accelerate
