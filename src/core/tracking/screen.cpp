// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/screen.h"

#include <algorithm>

#include "accelerate/observe/logger.h"
#include "core/base/str.h"
#include "core/base/utf8.h"

namespace accelerate {
namespace {

/// Erases from the cursor to the end of the screen. Nothing is below the bars.
constexpr const char* kErase = "\033[J";

} // namespace

size_t num_columns(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    at += utf8_sequence_at(text, at).length;
  }
  return count;
}

Screen& Screen::get() {
  static auto* screen = new Screen; // bars may outlive statics
  return *screen;
}

void Screen::add(BottomLine* line) {
  const std::lock_guard lock(mutex_);
  move_to_first_line(/*is_erased=*/true);
  lines_.push_back(line);
  draw();
}

void Screen::remove(BottomLine* line) {
  const std::lock_guard lock(mutex_);
  move_to_first_line(/*is_erased=*/true);
  std::ostream& output = line->output();
  if (lines_.size() == 1) {
    draw();
    output << '\n' << std::flush;
  }
  std::erase(lines_, line);
  widths_.clear();
  draw();
}

void Screen::redraw() {
  const std::lock_guard lock(mutex_);
  move_to_first_line(/*is_erased=*/false); // overwriting does not flicker
  draw();
}

void Screen::print(std::ostream& output, const std::string& line) {
  const std::lock_guard lock(mutex_);
  move_to_first_line(/*is_erased=*/true);
  // One write, so that lines of other processes do not come in between.
  output << line + '\n' << std::flush;
  draw();
}

void Screen::move_to_first_line(bool is_erased) {
  if (widths_.empty()) {
    return;
  }
  // A terminal that became narrower shows a line in several rows.
  const auto columns =
      static_cast<size_t>(std::max(lines_.front()->columns(), 1));
  size_t rows = 0;
  for (const size_t width : widths_) {
    rows += std::max<size_t>((width + columns - 1) / columns, 1);
  }
  std::string text = "\r";
  if (rows > 1) {
    text += str_cat("\033[", rows - 1, 'A');
  }
  lines_.front()->output() << text << (is_erased ? kErase : "") << std::flush;
  widths_.clear();
}

void Screen::draw() {
  std::string text;
  widths_.clear();
  for (const BottomLine* line : lines_) {
    const auto drawn = line->line(line->columns());
    text += (text.empty() ? "" : "\n") + drawn + "\033[K";
    widths_.push_back(num_columns(drawn));
  }
  if (!text.empty()) {
    lines_.front()->output() << '\r' << text << kErase << std::flush;
  }
}

void print_line(std::ostream& output, const std::string& line) {
  Screen::get().print(output, line);
}

} // namespace accelerate
