// SPDX-License-Identifier: Apache-2.0
// A progress bar for the terminal, drawn once per machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

struct ACCELERATE_API ProgressBarOptions {
  /// Text before the bar.
  std::string description = {};
  /// Draw or stay silent. By default the bar is drawn by the local main process
  /// (as the environment has it) and only where stderr is a terminal. Ranks
  /// that are threads of one process must set it.
  std::optional<bool> enabled = {};
  /// Where to draw; stderr by default. Borrowed: it must outlive the bar.
  std::ostream* output = nullptr;
  /// Width of a line in columns; the terminal's own (or 80) by default.
  std::optional<int> columns = {};
};

/// Shows how many of `total` steps are done, their rate and the time left.
/// Redrawn at most ten times a second and once at the end. Not thread safe.
///
///     accelerate::ProgressBar progress_bar(num_training_steps);
///     ...
///     progress_bar.update(1);
class ACCELERATE_API ProgressBar {
 public:
  explicit ProgressBar(int64_t total, ProgressBarOptions options = {});
  /// Ends the line, so that later output starts on a fresh one.
  ~ProgressBar();
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  /// Counts `steps` more steps as done.
  void update(int64_t steps = 1);
  /// Shows `text` (a loss, say) after the bar from the next drawing on.
  void set_postfix(std::string text);

  int64_t done() const;
  int64_t total() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
