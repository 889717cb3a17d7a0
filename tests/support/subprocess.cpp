// SPDX-License-Identifier: Apache-2.0
#include "support/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace accelerate::testing {

void sleep_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

Subprocess::Subprocess(
    std::vector<std::string> command,
    std::map<std::string, std::string> variables)
    : start_(std::chrono::steady_clock::now()) {
  std::vector<char*> arguments;
  for (auto& text : command) {
    arguments.push_back(text.data());
  }
  arguments.push_back(nullptr);
  const std::string out = output_.path() / "out";
  const std::string err = output_.path() / "err";
  pid_ = fork();
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
  if (pid_ == 0) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    // LeakSanitizer takes seconds at the end of each process, and fails inside
    // a PID namespace; code that tests call directly is checked.
    setenv("ASAN_OPTIONS", "detect_leaks=0", /*overwrite=*/0);
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  setpgid(pid_, pid_);
}

Subprocess::~Subprocess() {
  if (!is_reaped_) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Subprocess::send(int signal) const {
  kill(pid_, signal);
}

ProcessResult Subprocess::wait(std::chrono::seconds limit) {
  int status = 0;
  const bool ended = eventually(
      [&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
  if (!ended) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  is_reaped_ = true;
  ProcessResult result;
  result.exit_code =
      WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = out();
  result.err = err();
  result.duration = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start_);
  return result;
}

ProcessResult run_process(
    std::vector<std::string> command,
    std::map<std::string, std::string> variables,
    std::chrono::seconds limit) {
  return Subprocess(std::move(command), std::move(variables)).wait(limit);
}

} // namespace accelerate::testing
