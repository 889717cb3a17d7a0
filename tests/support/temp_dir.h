// SPDX-License-Identifier: Apache-2.0
// A folder that exists as long as its object.
#pragma once

#include <filesystem>
#include <string>

namespace accelerate::testing {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file into the folder and returns its path.
  std::filesystem::path write(
      const std::string& name,
      const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);

} // namespace accelerate::testing
