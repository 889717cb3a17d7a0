// SPDX-License-Identifier: Apache-2.0
// The secret shared by the launchers of one job.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "launcher/launch/machines/token_file.h"
#include "launcher/launch/plan/placement.h"

namespace accelerate {

/// A new token: 64 hexadecimal digits from the system's random numbers.
ACCELERATE_INTERNAL std::string random_token();

/// `bytes` as hexadecimal digits, two per byte.
ACCELERATE_INTERNAL std::string to_hexadecimal(std::string_view bytes);

/// ACCELERATE_JOB_TOKEN, or the first line of the file in
/// ACCELERATE_JOB_TOKEN_FILE, or empty. Throws `ConfigError` if the file cannot
/// be read, is empty, or others may read it.
ACCELERATE_INTERNAL std::string find_token(const EnvLookup& env);

/// The token of a launcher at `placement` that machine 0 did not start itself.
/// Lives as long as the job. If the user has set a token (`find_token`), it is
/// used. Otherwise, the token is empty if only this machine can connect. In all
/// other cases, under Slurm or MPI, machine 0 creates a token and shares it
/// (`TokenFile`), and the other machines wait for it for up to `join_limit`.
class ACCELERATE_INTERNAL JobToken {
 public:
  /// Throws `ConfigError` if there is no token although other machines could
  /// connect.
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
