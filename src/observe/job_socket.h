// SPDX-License-Identifier: Apache-2.0
// How a process is asked where its ranks are: a Unix socket of its own, in a
// folder that only its user can enter. Unlike a file that it would have to
// write all the time it costs nothing until somebody asks, and unlike a signal
// it takes no handler of the user's and gives an answer back.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_file.h"
#include "observe/report.h"

namespace accelerate {

/// Listens for as long as it lives, in the process that made it.
class ACCELERATE_API JobSocket {
 public:
  /// Throws `SystemError`.
  JobSocket();
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  /// For poll(2).
  int file() const { return file_.get(); }
  /// Answers one that waits; strangers get nothing.
  void answer(const std::function<std::vector<RankReport>()>& look) const;

 private:
  std::filesystem::path path_;
  pid_t owner_;
  UniqueFile file_;
};

/// What process `pid` says of its ranks. Nothing where it listens nowhere.
/// Throws `TimeoutError` where it does not answer.
ACCELERATE_API std::optional<std::vector<RankReport>> ask_process(int pid);

} // namespace accelerate
