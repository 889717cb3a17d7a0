// SPDX-License-Identifier: Apache-2.0
// The secret that the launchers of one job share.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "launch/machines/token_file.h"
#include "launch/plan/placement.h"

namespace accelerate {

/// 64 hexadecimal digits from the system's random numbers.
ACCELERATE_API std::string random_token();

/// Two digits per byte.
ACCELERATE_API std::string to_hexadecimal(std::string_view bytes);

/// ACCELERATE_JOB_TOKEN, else the first line of the file that
/// ACCELERATE_JOB_TOKEN_FILE names, else empty. Throws `ConfigError` where the
/// file cannot be read, is empty, or others may read it.
ACCELERATE_API std::string find_token(const EnvLookup& env);

/// The token of a launcher that somebody else started at `placement`, kept for
/// as long as the job lives: the user's (`find_token`); else, under Slurm or
/// MPI, one that machine 0 makes and leaves for the others (`TokenFile`), for
/// which they wait `join_limit`; else none, where all machines are this one.
class ACCELERATE_API JobToken {
 public:
  /// Throws `ConfigError` where there is none though others could join.
  JobToken(
      const Placement& placement,
      const EnvLookup& env,
      std::chrono::seconds join_limit);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::unique_ptr<TokenFile> file_;
};

} // namespace accelerate
