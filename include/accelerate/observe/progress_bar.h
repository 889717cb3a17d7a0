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
#include "accelerate/observe/tracking.h"

namespace accelerate {

struct ACCELERATE_API ProgressBarOptions {
  /// The text in front of the bar.
  std::string description = {};
  /// Whether to draw. By default, only the local main process draws (according
  /// to the environment), and only if stderr is a terminal. Required if ranks
  /// are threads of one process.
  std::optional<bool> enabled = {};
  /// The stream that the bar is drawn on. Default: stderr. It must outlive the
  /// bar.
  std::ostream* output = nullptr;
  /// The width of a line in columns. By default, it is the current width of the
  /// terminal, or 80.
  std::optional<int> columns = {};
  /// For resumed runs, the number of steps that were done before this run. They
  /// are not included in the rate.
  int64_t initial = 0;
  /// The unit of a step: `12.5 batch/s`.
  std::string unit = "it";
};

/// Shows how many of `total` steps are done, their rate, the elapsed time and
/// the time left. The bar is redrawn at most ten times a second and once at the
/// end. A bar that is created while another bar exists is drawn below the other
/// bar and disappears when its object is destroyed. The last bar stays on the
/// screen. Lines of `Logger` and `Accelerator::print` appear above the bars.
/// Control characters in strings are shown as `\x1b`. Use each bar from one
/// thread.
///
///     accelerate::ProgressBar progress_bar(num_training_steps);
///     ...
///     progress_bar.update(1);
///     progress_bar.set_postfix({{"loss", loss}, {"lr", 1e-3}});
class ACCELERATE_API ProgressBar {
 public:
  /// A negative `total` means that the number of steps is unknown.
  explicit ProgressBar(int64_t total, ProgressBarOptions options = {});
  /// Ends the line, so that later output starts on a new one.
  ~ProgressBar();
  /// The moved-from bar neither draws nor counts.
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  /// Counts `steps` additional steps as done.
  void update(int64_t steps = 1);
  /// Shows `text` after the bar, starting with the next redraw.
  template <std::convertible_to<std::string> Text>
  void set_postfix(Text&& text) {
    set_postfix_text(std::forward<Text>(text));
  }
  /// Shows named values, rounded to three digits: `loss=0.123, lr=0.001`.
  /// Throws `UsageError` if a tensor is not a single number.
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
