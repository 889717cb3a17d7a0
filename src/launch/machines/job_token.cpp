// SPDX-License-Identifier: Apache-2.0
#include "launch/machines/job_token.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <fstream>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

constexpr size_t kMaxTokenBytes = 200;

} // namespace

std::string random_token() {
  unsigned char bytes[32];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    throw SystemError("[launch] the system has no random numbers (getrandom)");
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

std::string find_token(const EnvLookup& env) {
  if (const auto token = env("ACCELERATE_JOB_TOKEN");
      token && !token->empty()) {
    if (token->size() > kMaxTokenBytes) {
      throw ConfigError(str_cat(
          "[launch] ACCELERATE_JOB_TOKEN has ",
          token->size(),
          " bytes, at most ",
          kMaxTokenBytes,
          " are used; shorten it"));
    }
    return *token;
  }
  const auto file = env("ACCELERATE_JOB_TOKEN_FILE");
  if (!file || file->empty()) {
    return {};
  }
  struct stat facts {};
  if (stat(file->c_str(), &facts) == 0 && (facts.st_mode & 077) != 0) {
    throw ConfigError(str_cat(
        "[launch] ACCELERATE_JOB_TOKEN_FILE=",
        *file,
        " can be read by others; run `chmod 600 ",
        *file,
        "` and make a new token"));
  }
  std::string token;
  std::getline(std::ifstream(*file), token);
  if (token.empty() || token.size() > kMaxTokenBytes) {
    throw ConfigError(str_cat(
        "[launch] ACCELERATE_JOB_TOKEN_FILE=",
        *file,
        " has no token in its first line; write up to ",
        kMaxTokenBytes,
        " random characters there, for example `openssl rand -hex 32`"));
  }
  return token;
}

} // namespace accelerate
