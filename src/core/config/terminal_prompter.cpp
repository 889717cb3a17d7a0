// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/str.h"
#include "core/config/prompter.h"

namespace accelerate {
namespace {

constexpr char kShowCursor[] = "\x1b[?25h";
constexpr char kHideCursor[] = "\x1b[?25l";
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// State for the signal handler, which must not allocate or lock.
int raw_terminal = -1;
int raw_output = -1;
termios cooked_mode{};

void write_bytes(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) {
      return; // the terminal is gone; reading will fail
    }
    text.remove_prefix(static_cast<size_t>(count < 0 ? 0 : count));
  }
}

void restore_and_die(int signal) {
  tcsetattr(raw_terminal, TCSANOW, &cooked_mode);
  write_bytes(raw_output, kShowCursor);
  // The handler was installed with SA_RESETHAND, so this one is fatal.
  raise(signal);
}

/// During its lifetime, keys arrive immediately and are not echoed.
class RawModeGuard {
 public:
  RawModeGuard(int in, int out) {
    if (tcgetattr(in, &cooked_mode) != 0) {
      throw SystemError(str_cat(
          "[config] The terminal is not responding (",
          std::strerror(errno),
          "). Answer the questions through a pipe instead"));
    }
    raw_terminal = in;
    raw_output = out;
    struct sigaction action {};
    action.sa_handler = restore_and_die;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &action, &old_[i]);
    }
    termios raw = cooked_mode;
    raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO | ISIG | IEXTEN));
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(in, TCSADRAIN, &raw);
    write_bytes(out, kHideCursor);
  }
  ~RawModeGuard() {
    tcsetattr(raw_terminal, TCSADRAIN, &cooked_mode);
    write_bytes(raw_output, kShowCursor);
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &old_[i], nullptr);
    }
  }
  RawModeGuard(const RawModeGuard&) = delete;
  RawModeGuard& operator=(const RawModeGuard&) = delete;

 private:
  struct sigaction old_[std::size(kSignals)] = {};
};

enum class Key { kUp, kDown, kEnter, kInterrupt, kEnd, kDigit, kOther };

struct KeyPress {
  Key key = Key::kOther;
  size_t digit = 0;
};

class KeyReader {
 public:
  explicit KeyReader(int in) : in_(in) {}

  KeyPress next() { return interpret(byte()); }

 private:
  KeyPress interpret(int c) {
    if (c >= '0' && c <= '9') {
      return {Key::kDigit, static_cast<size_t>(c - '0')};
    }
    switch (c) {
      case '\r':
      case '\n':
        return {Key::kEnter};
      case 'k':
      case 16: // Ctrl-P.
        return {Key::kUp};
      case 'j':
      case 14: // Ctrl-N.
        return {Key::kDown};
      case 3:
        return {Key::kInterrupt};
      case 4:
      case -1:
        return {Key::kEnd};
      case 27:
        return escape();
      default:
        return {};
    }
  }

  int byte() {
    unsigned char c = 0;
    ssize_t count = 0;
    do {
      count = read(in_, &c, 1);
    } while (count < 0 && errno == EINTR);
    return count == 1 ? c : -1;
  }

  // Whether another byte follows soon. If not, an Escape is a key of its own.
  bool has_more() const {
    pollfd waiting{in_, POLLIN, 0};
    return poll(&waiting, 1, 50) == 1;
  }

  KeyPress escape() {
    if (!has_more()) {
      return {};
    }
    const int second = byte();
    if (second != '[' && second != 'O') {
      return interpret(second); // typed right after an Escape
    }
    if (!has_more()) {
      return {};
    }
    const int third = byte();
    return third == 'A'   ? KeyPress{Key::kUp}
           : third == 'B' ? KeyPress{Key::kDown}
                          : KeyPress{};
  }

  int in_;
};

/// An open menu: one option per line, an arrow at the current one.
class Menu {
 public:
  Menu(int out, const std::vector<std::string>& options, size_t preset)
      : out_(out), options_(options), position_(preset) {}

  void draw() const {
    std::string text;
    for (size_t i = 0; i < options_.size(); ++i) {
      const std::string line = str_cat(i, ") ", options_[i]);
      text += "\r\x1b[K" +
              (i == position_ ? " \x1b[32m\u2794 " + line + "\x1b[0m"
                              : "   " + line) +
              "\n";
    }
    write_bytes(out_, text);
  }

  void erase() const {
    write_bytes(out_, str_cat("\x1b[", options_.size(), "A\r\x1b[J"));
  }

  void move(Key key) {
    typed_ = 0;
    if (key == Key::kUp) {
      position_ = (position_ + options_.size() - 1) % options_.size();
    } else if (key == Key::kDown) {
      position_ = (position_ + 1) % options_.size();
    }
  }

  // "1" followed by "2" means 12 if there are that many options, else 2.
  void type(size_t digit) {
    const size_t longer = typed_ * 10 + digit;
    typed_ = longer < options_.size() ? longer : digit;
    if (typed_ < options_.size()) {
      position_ = typed_;
    }
  }

  size_t position() const { return position_; }

 private:
  int out_;
  const std::vector<std::string>& options_;
  size_t position_;
  size_t typed_ = 0;
};

class TerminalPrompter : public Prompter {
 public:
  TerminalPrompter(int in, int out) : in_(in), out_(out) {}

  size_t choose(
      const std::string& question,
      const std::vector<std::string>& options,
      size_t preset) override {
    say(question + " (arrows or digits, then Enter)");
    const RawModeGuard raw(in_, out_);
    KeyReader keys(in_);
    Menu menu(out_, options, preset);
    menu.draw();
    while (true) {
      const KeyPress press = keys.next();
      if (press.key == Key::kInterrupt) {
        throw Interrupted();
      }
      if (press.key == Key::kEnd) {
        end_of_input();
      }
      menu.erase();
      if (press.key == Key::kEnter) {
        say("   \x1b[32m" + options[menu.position()] + "\x1b[0m");
        return menu.position();
      }
      if (press.key == Key::kDigit) {
        menu.type(press.digit);
      } else {
        menu.move(press.key);
      }
      menu.draw();
    }
  }

  // Uses the terminal's own line editing.
  std::string ask(const std::string& question, const std::string& preset)
      override {
    write_bytes(
        out_, question + (preset.empty() ? "" : " [" + preset + "]") + ": ");
    std::string line;
    char c = 0;
    while (true) {
      const ssize_t count = read(in_, &c, 1);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        end_of_input();
      }
      if (c == '\n') {
        break;
      }
      line += c;
    }
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) {
      return preset;
    }
    return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
  }

  void say(const std::string& line) override { write_bytes(out_, line + "\n"); }

 private:
  [[noreturn]] void end_of_input() {
    write_bytes(out_, "\n");
    throw ConfigError(
        "[config] The input ended before all questions were answered. Nothing "
        "was written");
  }

  int in_;
  int out_;
};

} // namespace

std::unique_ptr<Prompter> make_terminal_prompter(int in, int out) {
  return std::make_unique<TerminalPrompter>(in, out);
}

} // namespace accelerate
