// SPDX-License-Identifier: Apache-2.0
// A program on a pseudo-terminal, driven key by key.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <map>
#include <string>
#include <vector>

namespace accelerate::testing {

inline constexpr const char* kUp = "\x1b[A";
inline constexpr const char* kDown = "\x1b[B";
inline constexpr const char* kCtrlC = "\x03";
inline constexpr const char* kCtrlD = "\x04";

class Terminal {
 public:
  Terminal(
      std::vector<std::string> command,
      const std::map<std::string, std::string>& variables);
  /// Kills a running program.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Waits until `text` was shown after what earlier calls waited for; false if
  /// that takes more than two minutes.
  bool shows(const std::string& text);
  void type(const std::string& keys) const;
  /// Waits for `question`, then types `keys`.
  bool answer(const std::string& question, const std::string& keys);
  void send(int signal) const;
  /// Closes the window and disconnects: nothing is shown any more.
  void hang_up();
  /// The exit code, or 128 + n for signal n; kills the program after two
  /// minutes.
  int wait();

  /// Whether echo and line editing are on and the cursor is visible, as before
  /// the program ran.
  bool is_restored() const;
  const std::string& shown() const { return shown_; }

 private:
  bool read_some();
  termios mode() const;

  pid_t pid_ = -1;
  int master_ = -1;
  int slave_ = -1;
  termios before_{};
  std::string shown_;
  size_t seen_ = 0;
};

} // namespace accelerate::testing
