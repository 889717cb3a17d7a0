// SPDX-License-Identifier: Apache-2.0
// The secret that the launchers of one job share.
#pragma once

#include <string>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// 64 hexadecimal digits from the system's random numbers.
ACCELERATE_API std::string random_token();

/// ACCELERATE_JOB_TOKEN, else the first line of the file that
/// ACCELERATE_JOB_TOKEN_FILE names, else empty. Throws `ConfigError` where the
/// file cannot be read, is empty, or others may read it.
ACCELERATE_API std::string find_token(const EnvLookup& env);

} // namespace accelerate
