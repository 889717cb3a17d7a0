// SPDX-License-Identifier: Apache-2.0
// The terminal, which bars and log lines share.
#pragma once

#include <cstddef>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

namespace accelerate {

/// A line at the bottom of a terminal that is redrawn, below earlier bottom
/// lines.
class BottomLine {
 public:
  virtual ~BottomLine() = default;
  /// The text of the line, at most `columns - 1` columns wide.
  virtual std::string line(int columns) const = 0;
  virtual int columns() const = 0;
  virtual std::ostream& output() const = 0;
};

/// The width of the text. Each character counts as one column.
size_t num_columns(const std::string& text);

/// Draws all bottom lines of this process, because stdout and stderr are
/// usually the same terminal. Every call holds the lock. `mutex` also protects
/// the data that lines read.
class Screen {
 public:
  static Screen& get();

  void add(BottomLine* line);
  /// The last line to be removed stays on the screen.
  void remove(BottomLine* line);
  void redraw();
  /// Prints `line` above the bottom lines.
  void print(std::ostream& output, const std::string& line);
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  /// Moves the cursor to the start of the first bottom line.
  void move_to_first_line(bool is_erased);
  void draw();

  std::recursive_mutex mutex_;
  std::vector<BottomLine*> lines_;
  /// The width of each line when it was last drawn.
  std::vector<size_t> widths_;
};

} // namespace accelerate
