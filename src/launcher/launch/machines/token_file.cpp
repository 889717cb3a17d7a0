// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"
#include "core/base/variables.h"
#include "core/config/env_bridge.h"
#include "launcher/launch/machines/job_token.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTokenDigits = 64;
constexpr std::chrono::milliseconds kTokenLook{100};

bool is_own(const struct stat& facts) {
  return facts.st_uid == geteuid() && (facts.st_mode & 077) == 0;
}

[[noreturn]] void refuse(const fs::path& path) {
  throw ConfigError(str_cat(
      "[launch] ",
      path.string(),
      " belongs to another user, or other users can read it; remove it, or set "
      "the same ",
      variables::kJobToken,
      " on every machine"));
}

[[noreturn]] void fail(const fs::path& path) {
  throw SystemError(str_cat(
      "[launch] cannot write the job token to ",
      path.string(),
      " (",
      std::strerror(errno),
      "); set the same ",
      variables::kJobToken,
      " on every machine instead"));
}

void make_own_folder(const fs::path& folder) {
  std::error_code ignored; // the call below reports the error
  fs::create_directories(folder.parent_path(), ignored);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(folder);
  }
  struct stat facts {};
  if (lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      !is_own(facts)) {
    refuse(folder);
  }
}

// The whole token; empty if machine 0 has not finished writing.
std::string read_token(const fs::path& path) {
  const UniqueFile file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0) {
    if (errno == ELOOP) {
      refuse(path);
    }
    return {};
  }
  if (!S_ISREG(facts.st_mode) || !is_own(facts)) {
    refuse(path);
  }
  char text[kTokenDigits];
  const auto size = read(file.get(), text, sizeof(text));
  return size == sizeof(text) ? std::string(text, sizeof(text)) : "";
}

// Opening the folder refreshes the cache of a network file system, which may
// still consider the file missing.
void refresh(const fs::path& folder) {
  std::error_code ignored;
  fs::directory_iterator(folder, ignored);
}

} // namespace

fs::path token_file_of(const std::string& job, const EnvLookup& env) {
  // Does not use XDG_CACHE_HOME, which is often on a local disk of a cluster
  // machine.
  return home_folder(env) / ".cache" / "accelerate" / "tokens" / job;
}

TokenFile::TokenFile(fs::path path)
    : path_(std::move(path)), token_(random_token()) {
  make_own_folder(path_.parent_path());
  unlink(path_.c_str()); // left by a killed launcher
  const UniqueFile file(open(
      path_.c_str(),
      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
      0600));
  if (!file ||
      write(file.get(), token_.data(), token_.size()) !=
          static_cast<ssize_t>(token_.size()) ||
      fsync(file.get()) != 0) {
    fail(path_);
  }
}

TokenFile::~TokenFile() {
  unlink(path_.c_str());
}

std::string await_token(const fs::path& path, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    refresh(path.parent_path());
    if (std::string token = read_token(path); !token.empty()) {
      return token;
    }
    if (std::chrono::steady_clock::now() > end) {
      throw ConfigError(str_cat(
          "[launch] machine 0 did not write a token to ",
          path.string(),
          " within ",
          limit.count(),
          " s. Check that machine 0 has started and that the machines share "
          "the home folder, or set the same ",
          variables::kJobToken,
          " on all of them (srun forwards it, mpirun with -x)"));
    }
    std::this_thread::sleep_for(kTokenLook);
  }
}

} // namespace accelerate
