// SPDX-License-Identifier: Apache-2.0
// Lets other processes query the ranks of a process: a Unix socket in a folder
// that only its user can enter. Unlike a status file, it costs nothing until it
// is used. Unlike a signal, it needs no handler and can return an answer.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/base/unique_file.h"
#include "core/observe/report.h"

namespace accelerate {

/// Listens during its lifetime, in the process that created it.
class ACCELERATE_INTERNAL JobSocket {
 public:
  /// Throws `SystemError`.
  JobSocket();
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;
  JobSocket& operator=(const JobSocket&) = delete;

  /// The socket, for poll(2).
  int file() const { return file_.get(); }
  /// Answers one waiting client. Clients of other users get no answer.
  void answer(const std::function<std::vector<RankReport>()>& look) const;

 private:
  std::filesystem::path path_;
  pid_t owner_;
  UniqueFile file_;
};

/// The reports of the ranks in process `pid`. Empty if it does not listen.
/// Throws `TimeoutError` if it does not answer.
ACCELERATE_INTERNAL std::optional<std::vector<RankReport>> ask_process(int pid);

} // namespace accelerate
