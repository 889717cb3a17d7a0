// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/job_token.h"

#include <sys/random.h>
#include <sys/stat.h>

#include "accelerate/error.h"
#include "core/base/small_file.h"
#include "core/base/str.h"
#include "core/base/variables.h"

namespace accelerate {
namespace {

constexpr size_t kMaxTokenBytes = 200;

} // namespace

std::string random_token() {
  unsigned char bytes[32];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    throw SystemError(
        "[launch] cannot get random numbers from the system (getrandom)");
  }
  return to_hexadecimal({reinterpret_cast<char*>(bytes), sizeof(bytes)});
}

std::string to_hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

std::string find_token(const EnvLookup& env) {
  if (const auto token = env(variables::kJobToken); token && !token->empty()) {
    if (token->size() > kMaxTokenBytes) {
      throw ConfigError(str_cat(
          "[launch] ",
          variables::kJobToken,
          " has ",
          token->size(),
          " bytes, but at most ",
          kMaxTokenBytes,
          " are allowed; shorten it"));
    }
    return *token;
  }
  const auto file = env(variables::kJobTokenFile);
  if (!file || file->empty()) {
    return {};
  }
  struct stat facts {};
  if (stat(file->c_str(), &facts) == 0 && (facts.st_mode & 077) != 0) {
    throw ConfigError(str_cat(
        "[launch] ",
        variables::kJobTokenFile,
        "=",
        *file,
        " is readable by other users; run `chmod 600 ",
        *file,
        "` and create a new token"));
  }
  std::string token = read_small_file(*file, variables::kJobTokenFile);
  token = token.substr(0, token.find('\n'));
  if (token.empty() || token.size() > kMaxTokenBytes) {
    throw ConfigError(str_cat(
        "[launch] ",
        variables::kJobTokenFile,
        "=",
        *file,
        " has no token on its first line; write up to ",
        kMaxTokenBytes,
        " random characters there, for example `openssl rand -hex 32`"));
  }
  return token;
}

JobToken::JobToken(
    const Placement& placement,
    const EnvLookup& env,
    std::chrono::seconds join_limit)
    : text_(find_token(env)) {
  const std::string& job = placement.environment.job;
  if (!text_.empty() || placement.num_machines == 1 ||
      is_loopback_only(placement)) {
    return;
  }
  if (job.empty()) {
    throw ConfigError(str_cat(
        "[launch] ",
        placement.num_machines,
        " machines connect to ",
        placement.rendezvous.address,
        " without a job token, so any program that can reach that port could "
        "join the job; set the same ",
        variables::kJobToken,
        " on every machine, for example from `openssl rand -hex 32`"));
  }
  const auto path = token_file_of(job, env);
  if (placement.machine_rank == 0) {
    file_ = std::make_unique<TokenFile>(path);
    text_ = file_->token();
  } else {
    text_ = await_token(path, join_limit);
  }
}

} // namespace accelerate
