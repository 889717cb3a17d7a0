// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_of(const ChildCommand& command) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (!command.variables.contains(name) && !command.removed.contains(name)) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : command.variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

/// The command as the system calls want it, made before the fork: a child may
/// not allocate.
class PreparedCommand {
 public:
  explicit PreparedCommand(const ChildCommand& command)
      : command_(command.command),
        environment_(environment_of(command)),
        arguments_(pointers_to(command_)),
        variables_(pointers_to(environment_)),
        has_cores_(!command.cores.empty()) {
    CPU_ZERO(&cores_);
    for (const int core : command.cores) {
      CPU_SET(static_cast<size_t>(core), &cores_);
    }
  }

  /// Returns only where the command cannot be executed, with the cause.
  int execute() const {
    if (has_cores_) {
      sched_setaffinity(0, sizeof(cores_), &cores_);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(arguments_[0], arguments_.data(), variables_.data());
    return errno;
  }

 private:
  std::vector<std::string> command_;
  std::vector<std::string> environment_;
  std::vector<char*> arguments_;
  std::vector<char*> variables_;
  bool has_cores_;
  cpu_set_t cores_;
};

// Runs in the child between fork and exec: system calls only.
void take_streams(const ChildStreams& streams) {
  if (streams.in) {
    dup2(streams.in.get(), STDIN_FILENO);
  } else if (!streams.inherits_input) {
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  }
  if (streams.out) {
    dup2(streams.out.get(), STDOUT_FILENO);
  }
  if (streams.err) {
    dup2(streams.err.get(), STDERR_FILENO);
  }
}

[[noreturn]] void refuse(const ChildCommand& command, int cause) {
  throw SystemError(str_cat(
      "[launch] cannot execute '",
      command.command[0],
      "': ",
      std::strerror(cause),
      "; give the path of a program or of a .py file"));
}

} // namespace

pid_t start_child(const ChildCommand& command, const ChildStreams& streams) {
  const PreparedCommand prepared(command);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw SystemError(str_cat("[launch] pipe: ", std::strerror(errno)));
  }
  const UniqueFile report(ends[0]);
  UniqueFile childs_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw SystemError(str_cat(
        "[launch] cannot start '",
        command.command[0],
        "': ",
        std::strerror(errno),
        "; raise the limit on processes (ulimit -u)"));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(128 + SIGKILL); // The launcher died before the line above.
    }
    take_streams(streams);
    const int cause = prepared.execute();
    [[maybe_unused]] const auto written =
        write(childs_end.get(), &cause, sizeof(cause));
    _exit(127);
  }
  childs_end.reset();
  int cause = 0;
  // The pipe closes without a word when exec succeeds.
  if (read(report.get(), &cause, sizeof(cause)) == sizeof(cause)) {
    waitpid(child, nullptr, 0);
    refuse(command, cause);
  }
  return child;
}

void become(const ChildCommand& command) {
  refuse(command, PreparedCommand(command).execute());
}

void ChildReaper::on_end(pid_t pid, Callback callback) {
  callbacks_[pid] = std::move(callback);
}

void ChildReaper::collect() {
  int status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    if (auto found = callbacks_.extract(pid)) {
      found.mapped()(status);
    }
  }
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return str_cat("signal ", signal, " (", strsignal(signal), ")");
  }
  return str_cat("exit code ", WEXITSTATUS(wait_status));
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                  : WEXITSTATUS(wait_status);
}

} // namespace accelerate
