// SPDX-License-Identifier: Apache-2.0
// Starting a process, and how it ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// The standard streams of a child. If `out` or `err` is not open, the child
/// shares that of this process. Without `inherits_input` and `in`, stdin is
/// empty.
struct ChildStreams {
  bool inherits_input = false;
  UniqueFile in = {};
  UniqueFile out = {};
  UniqueFile err = {};
};

struct ChildCommand {
  std::vector<std::string> command = {};
  /// Variables added to this process's environment.
  std::map<std::string, std::string> variables = {};
  /// Variables added if they are missing in the environment, or empty.
  std::map<std::string, std::string> defaults = {};
  /// Variables removed from the environment.
  std::set<std::string> removed = {};
  /// The cores that the child may use. Empty means those of this process.
  std::vector<int> cores = {};
  /// The NUMA nodes of the child's memory. Empty means those of this process.
  std::vector<int> memory_nodes = {};
};

/// What the command's environment has in addition to this process's: its
/// variables and the defaults that apply.
ACCELERATE_INTERNAL std::map<std::string, std::string> added_variables(
    const ChildCommand& command);

/// Starts the command, which is killed when this process ends. Throws
/// `SystemError` with the cause and a hint if the command cannot be executed,
/// or cannot use these cores or memory of these nodes.
pid_t start_child(const ChildCommand& command, const ChildStreams& streams);

/// Replaces this process with the command. Throws the same errors as
/// `start_child`.
[[noreturn]] ACCELERATE_INTERNAL void become(const ChildCommand& command);

/// Reaps this process's children and calls the registered callbacks.
class ChildReaper {
 public:
  using Callback = std::function<void(int wait_status)>;

  /// `collect` calls `callback` once after `pid` has ended.
  void on_end(pid_t pid, Callback callback);
  /// Unregisters the callback.
  void forget(pid_t pid) { callbacks_.erase(pid); }
  /// Call it after each SIGCHLD. Adopted orphans are reaped silently.
  void collect();

 private:
  std::map<pid_t, Callback> callbacks_;
};

/// "failed with exit code 3", "was killed (SIGKILL)".
std::string describe_end(int wait_status);
/// The exit code, or 128 + n if signal n ended it.
int exit_code_of(int wait_status);

} // namespace accelerate
