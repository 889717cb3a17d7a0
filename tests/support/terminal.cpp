// SPDX-License-Identifier: Apache-2.0
#include "support/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "support/subprocess.h"

namespace accelerate::testing {

Terminal::Terminal(
    std::vector<std::string> command,
    const std::map<std::string, std::string>& variables) {
  if (openpty(&master_, &slave_, nullptr, nullptr, nullptr) != 0) {
    throw std::runtime_error("no pseudo-terminal");
  }
  before_ = mode();
  pid_ = fork();
  if (pid_ == 0) {
    close(master_);
    login_tty(slave_); // a new session with this as its terminal
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<char*> arguments;
    for (std::string& argument : command) {
      arguments.push_back(argument.data());
    }
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
}

Terminal::~Terminal() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(slave_);
  if (master_ >= 0) {
    close(master_);
  }
}

bool Terminal::read_some() {
  pollfd waiting{master_, POLLIN, 0};
  if (poll(&waiting, 1, 20) != 1) {
    return false;
  }
  char buffer[4096];
  const ssize_t count = read(master_, buffer, sizeof(buffer));
  if (count > 0) {
    shown_.append(buffer, static_cast<size_t>(count));
  }
  return count > 0;
}

bool Terminal::shows(const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (std::chrono::steady_clock::now() < end) {
    const size_t found = shown_.find(text, seen_);
    if (found != std::string::npos) {
      seen_ = found + text.size();
      return true;
    }
    read_some();
  }
  return false;
}

void Terminal::type(const std::string& keys) const {
  if (write(master_, keys.data(), keys.size()) !=
      static_cast<ssize_t>(keys.size())) {
    throw std::runtime_error("the terminal takes no keys");
  }
}

bool Terminal::answer(const std::string& question, const std::string& keys) {
  const bool is_shown = shows(question);
  type(keys);
  return is_shown;
}

void Terminal::send(int signal) const {
  kill(pid_, signal);
}

void Terminal::hang_up() {
  close(std::exchange(master_, -1));
}

int Terminal::wait() {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    read_some();
    if (std::chrono::steady_clock::now() > end) {
      kill(pid_, SIGKILL);
    }
  }
  pid_ = -1;
  while (read_some()) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

termios Terminal::mode() const {
  termios mode{};
  tcgetattr(slave_, &mode);
  return mode;
}

bool Terminal::is_restored() const {
  const size_t hidden = shown_.rfind("\x1b[?25l");
  const bool is_visible = hidden == std::string::npos ||
                          shown_.find("\x1b[?25h", hidden) != std::string::npos;
  const termios now = mode();
  return is_visible && now.c_lflag == before_.c_lflag &&
         now.c_iflag == before_.c_iflag && now.c_oflag == before_.c_oflag;
}

} // namespace accelerate::testing
