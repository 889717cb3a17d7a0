// SPDX-License-Identifier: Apache-2.0
#include "support/temp_dir.h"

#include <ftw.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace accelerate::testing {

TempDir::TempDir() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "accelerate_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder: " + pattern);
  }
  path_ = pattern;
}

// Not remove_all: with libtorch.so it is torch's, which crashes.
TempDir::~TempDir() {
  constexpr int kOpenFolders = 16;
  nftw(
      path_.c_str(),
      [](const char* path, const struct stat*, int, FTW*) {
        return std::remove(path);
      },
      kOpenFolders,
      FTW_DEPTH | FTW_PHYS);
}

std::filesystem::path TempDir::write(
    const std::string& name,
    const std::string& content) const {
  const auto file = path_ / name;
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

} // namespace accelerate::testing
