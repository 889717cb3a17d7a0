// SPDX-License-Identifier: Apache-2.0
// The token of a job whose launchers were started by Slurm or MPI, without a
// user to pass one.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "accelerate/process.h"
#include "core/base/internal.h"

namespace accelerate {

/// The path of the token file of `job`, in the user's home folder, which
/// clusters share between their machines.
ACCELERATE_INTERNAL std::filesystem::path token_file_of(
    const std::string& job,
    const EnvLookup& env);

/// A file with a new token that only this user can read. The destructor removes
/// it. Throws `SystemError` if it cannot be written, and `ConfigError` if its
/// folder belongs to another user or is accessible to others.
class ACCELERATE_INTERNAL TokenFile {
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

/// Waits until machine 0 has written `path`, and returns the token. Throws
/// `ConfigError` after `limit`, or if the file does not belong to this user.
std::string await_token(
    const std::filesystem::path& path,
    std::chrono::seconds limit);

} // namespace accelerate
