// SPDX-License-Identifier: Apache-2.0
// The token of a job whose launchers Slurm or MPI started: nobody was there to
// hand it to them.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// Where the machines of `job` leave and find it: in the user's home folder,
/// which clusters share between their machines.
ACCELERATE_API std::filesystem::path token_file_of(
    const std::string& job,
    const EnvLookup& env);

/// A file with a new token that only this user can read; it goes with the
/// object. Throws `SystemError` where it cannot be written, `ConfigError` where
/// its folder is another user's or open to others.
class ACCELERATE_API TokenFile {
 public:
  explicit TokenFile(std::filesystem::path path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& token() const { return token_; }

 private:
  std::filesystem::path path_;
  std::string token_;
};

/// Waits until machine 0 has written `path`. Throws `ConfigError` where it has
/// not after `limit`, or where the file is not this user's own.
ACCELERATE_API std::string await_token(
    const std::filesystem::path& path,
    std::chrono::seconds limit);

} // namespace accelerate
