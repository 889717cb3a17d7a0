// SPDX-License-Identifier: Apache-2.0
// Dialogue with the user of a questionnaire.
#pragma once

#include <istream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "accelerate/error.h"
#include "core/base/internal.h"

namespace accelerate {

/// The user pressed Ctrl-C. Nothing was decided, so nothing may be written.
class ACCELERATE_INTERNAL Interrupted : public Error {
 public:
  Interrupted() : Error("[config] interrupted; nothing was written") {}
};

/// Asks one question at a time. Throws `ConfigError` if the input ends and
/// `Interrupted` on Ctrl-C.
class ACCELERATE_INTERNAL Prompter {
 public:
  virtual ~Prompter() = default;
  /// The index of the chosen option.
  virtual size_t choose(
      const std::string& question,
      const std::vector<std::string>& options,
      size_t preset) = 0;
  /// Returns the typed line without surrounding blanks, or `preset` if the line
  /// is empty.
  virtual std::string ask(
      const std::string& question,
      const std::string& preset) = 0;
  /// A line for the user, such as why an answer is invalid.
  virtual void say(const std::string& line) = 0;
};

/// Questions and answers as plain lines, for pipes. A menu is answered with an
/// index or the text of an option. Borrows both streams.
ACCELERATE_INTERNAL std::unique_ptr<Prompter> make_plain_prompter(
    std::istream& in,
    std::ostream& out);

/// Menus with arrow keys, j, k and digits on the terminal of these two
/// descriptors. The terminal is in raw mode only while a menu is open. It is
/// restored on return, on an exception, and on SIGINT, SIGTERM, SIGHUP and
/// SIGQUIT. A process can have only one such prompter, because signal handlers
/// are global.
ACCELERATE_INTERNAL std::unique_ptr<Prompter> make_terminal_prompter(
    int in,
    int out);

} // namespace accelerate
