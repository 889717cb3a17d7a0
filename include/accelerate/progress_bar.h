// SPDX-License-Identifier: Apache-2.0
// A progress bar for the terminal, drawn once per machine.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "accelerate/export.h"
#include "accelerate/tracking.h"

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
  /// Width of a line in columns; by default what the terminal has (or 80), also
  /// after it was resized.
  std::optional<int> columns = {};
  /// Steps that are done already, in a run that goes on; they count for no
  /// rate.
  int64_t initial = 0;
  /// What a step is called: `12.5 batch/s`.
  std::string unit = "it";
};

/// Shows how many of `total` steps are done, their rate, the time so far and
/// the time left. Redrawn at most ten times a second and once at the end. A bar
/// that is made while another lives is drawn below it and goes with its object;
/// the last one to go stays on the screen. Lines of `Logger` and
/// `Accelerator::print` appear above the bars. Control characters in texts are
/// shown as `\x1b`. Each bar is used by one thread.
///
///     accelerate::ProgressBar progress_bar(num_training_steps);
///     ...
///     progress_bar.update(1);
///     progress_bar.set_postfix({{"loss", loss}, {"lr", 1e-3}});
class ACCELERATE_API ProgressBar {
 public:
  /// With a `total` that is negative, nobody knows how many there will be.
  explicit ProgressBar(int64_t total, ProgressBarOptions options = {});
  /// Ends the line, so that later output starts on a fresh one.
  ~ProgressBar();
  /// What is left behind draws nothing and counts nothing.
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  /// Counts `steps` more steps as done.
  void update(int64_t steps = 1);
  /// Shows `text` after the bar from the next drawing on.
  template <std::convertible_to<std::string> Text>
  void set_postfix(Text&& text) {
    set_postfix_text(std::forward<Text>(text));
  }
  /// The same for values by name, numbers with three digits:
  /// `loss=0.123, lr=0.001`. Throws `UsageError` on a tensor that is no one
  /// number.
  void set_postfix(const TrackedValues& values);
  void set_description(const std::string& text);

  int64_t done() const;
  int64_t total() const;

 private:
  void set_postfix_text(const std::string& text);

  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
