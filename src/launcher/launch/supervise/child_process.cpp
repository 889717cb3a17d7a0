// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/child_process.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bitset>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/signal_name.h"
#include "core/base/str.h"
#include "launcher/launch/plan/nearest_file.h"

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
  const auto added = added_variables(command);
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (!added.contains(name) && !command.removed.contains(name)) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    result.push_back(name + "=" + value);
  }
  return result;
}

/// What failed in a child.
struct StartFailure {
  enum class Step { kCores, kMemory, kExecute } step = Step::kExecute;
  int cause = 0;
};

/// The command in the form for system calls. Prepared before the fork, because
/// a child must not allocate.
class PreparedCommand {
 public:
  explicit PreparedCommand(const ChildCommand& command)
      : command_(command.command),
        environment_(environment_of(command)),
        arguments_(pointers_to(command_)),
        variables_(pointers_to(environment_)),
        has_cores_(!command.cores.empty()),
        has_nodes_(!command.memory_nodes.empty()) {
    CPU_ZERO(&cores_);
    for (const int core : command.cores) {
      CPU_SET(static_cast<size_t>(core), &cores_);
    }
    for (const int node : command.memory_nodes) {
      nodes_.set(static_cast<size_t>(node));
    }
  }

  /// Executes the command. Returns only if that fails, with the cause.
  StartFailure execute() const {
    if (has_cores_ && sched_setaffinity(0, sizeof(cores_), &cores_) != 0) {
      return {StartFailure::Step::kCores, errno};
    }
    if (has_nodes_ &&
        syscall(SYS_set_mempolicy, MPOL_BIND, &nodes_, nodes_.size() + 1) !=
            0) {
      return {StartFailure::Step::kMemory, errno};
    }
    // Discard a pending SIGXFSZ from the launcher's own files: pending signals
    // survive exec.
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    const timespec now{};
    sigtimedwait(&too_large, nullptr, &now);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(arguments_[0], arguments_.data(), variables_.data());
    return {StartFailure::Step::kExecute, errno};
  }

 private:
  std::vector<std::string> command_;
  std::vector<std::string> environment_;
  std::vector<char*> arguments_;
  std::vector<char*> variables_;
  bool has_cores_;
  bool has_nodes_;
  cpu_set_t cores_;
  std::bitset<1024> nodes_;
};

// Sets the standard streams in the child between fork and exec. Uses system
// calls only.
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

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += str_cat(text.empty() ? "" : ",", number);
  }
  return text;
}

/// What to do about a program that cannot be executed.
std::string hint_for(const std::string& program, int cause) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool is_path = program.find('/') != std::string::npos;
  if (fs::is_directory(program, ignored)) {
    return "it is a folder; pass a program or a .py file";
  }
  if (cause == ENOENT && !is_path && fs::exists(program, ignored)) {
    return str_cat(
        "to run the file in the current folder, pass ./", printable(program));
  }
  if (cause == ENOENT && is_path && fs::exists(program, ignored)) {
    return "the interpreter named in its first line does not exist";
  }
  if (cause == EACCES && fs::exists(program, ignored) &&
      !fs::is_regular_file(program, ignored)) {
    return "it is a device, a pipe or a socket; pass a program or a .py file";
  }
  if (cause == EACCES && access(program.c_str(), X_OK) == 0) {
    return "it is executable, but its file system is mounted with noexec, or "
           "the interpreter in its first line is not executable";
  }
  if (cause == EACCES && fs::exists(program, ignored)) {
    return str_cat("make it executable: chmod +x ", printable(program));
  }
  if (cause == ENOEXEC) {
    return "it is not a program for this machine; a script needs a first line "
           "such as #!/bin/sh";
  }
  if (cause == ENOENT && !is_path && program.starts_with("python")) {
    return "install Python, or add its folder to PATH";
  }
  if (const std::string meant = nearest_file(program, {"", ".py"});
      cause == ENOENT && !meant.empty()) {
    return str_cat("did you mean '", printable(meant), "'?");
  }
  return cause == ENOENT ? "check the path of the program"
                         : "pass a program or a .py file";
}

[[noreturn]] void refuse(
    const ChildCommand& command,
    const StartFailure& failure) {
  const std::string cause = std::strerror(failure.cause);
  if (failure.step == StartFailure::Step::kCores) {
    throw SystemError(str_cat(
        "[launch] cannot pin a process to the cores ",
        joined(command.cores),
        " (",
        cause,
        "); launch without --enable_cpu_affinity"));
  }
  if (failure.step == StartFailure::Step::kMemory) {
    throw SystemError(str_cat(
        "[launch] cannot bind memory to NUMA node ",
        joined(command.memory_nodes),
        " (",
        cause,
        "); launch without --bind_memory, or give the container the SYS_NICE "
        "capability"));
  }
  throw SystemError(str_cat(
      "[launch] cannot execute '",
      printable(command.command[0]),
      "': ",
      cause,
      "; ",
      hint_for(command.command[0], failure.cause)));
}

} // namespace

std::map<std::string, std::string> added_variables(
    const ChildCommand& command) {
  auto added = command.variables;
  for (const auto& [name, value] : command.defaults) {
    const char* given = getenv(name.c_str());
    if (given == nullptr || *given == '\0') {
      added.try_emplace(name, value);
    }
  }
  return added;
}

pid_t start_child(const ChildCommand& command, const ChildStreams& streams) {
  const PreparedCommand prepared(command);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot create a pipe (",
        std::strerror(errno),
        "); raise the limit on open files (ulimit -n)"));
  }
  const UniqueFile report(ends[0]);
  UniqueFile childs_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw SystemError(str_cat(
        "[launch] cannot start '",
        printable(command.command[0]),
        "': ",
        std::strerror(errno),
        "; raise the limit on processes (ulimit -u)"));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(128 + SIGKILL); // the launcher died before the line above
    }
    take_streams(streams);
    const StartFailure failure = prepared.execute();
    [[maybe_unused]] const auto written =
        write(childs_end.get(), &failure, sizeof(failure));
    _exit(127);
  }
  childs_end.reset();
  StartFailure failure;
  // The pipe closes without data when exec succeeds.
  if (read(report.get(), &failure, sizeof(failure)) == sizeof(failure)) {
    waitpid(child, nullptr, 0);
    refuse(command, failure);
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
  if (!WIFSIGNALED(wait_status)) {
    const int code = WEXITSTATUS(wait_status);
    return str_cat(code == 0 ? "exited" : "failed", " with exit code ", code);
  }
  const int signal = WTERMSIG(wait_status);
  const std::string shown = signal_name(signal);
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return str_cat("crashed (", shown, ": ", strsignal(signal), ")");
    case SIGABRT:
      return str_cat("aborted (", shown, ")");
    default:
      return str_cat("was killed (", shown, ")");
  }
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                  : WEXITSTATUS(wait_status);
}

} // namespace accelerate
