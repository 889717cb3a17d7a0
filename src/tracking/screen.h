// SPDX-License-Identifier: Apache-2.0
// What bars and log lines share: the terminal.
#pragma once

#include <cstddef>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

namespace accelerate {

/// Lines at the bottom of a terminal that are drawn anew, one below the other.
class BottomLine {
 public:
  virtual ~BottomLine() = default;
  /// At most `columns - 1` columns wide.
  virtual std::string line(int columns) const = 0;
  virtual int columns() const = 0;
  virtual std::ostream& output() const = 0;
};

/// How wide the text is; each character is taken for one column.
size_t num_columns(const std::string& text);

/// One for the process: standard output and standard error are most often one
/// terminal. Every call holds its lock; `mutex` is for what lines read.
class Screen {
 public:
  static Screen& get();

  void add(BottomLine* line);
  /// The last line to go stays where it is drawn.
  void remove(BottomLine* line);
  void redraw();
  /// Above the bottom lines.
  void print(std::ostream& output, const std::string& line);
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  /// To where the first line begins.
  void go_home(bool is_erased);
  void draw();

  std::recursive_mutex mutex_;
  std::vector<BottomLine*> lines_;
  /// How wide each line was when it was drawn last.
  std::vector<size_t> widths_;
};

} // namespace accelerate
