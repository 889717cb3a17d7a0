// SPDX-License-Identifier: Apache-2.0
// The questions of `accelerate config`.
#pragma once

#include "core/base/internal.h"
#include "core/config/launch_config.h"
#include "core/config/prompter.h"

namespace accelerate {

struct QuestionnaireOptions {
  /// Usable GPUs of this machine. If there are none, questions about them are
  /// skipped.
  int num_gpus = 0;
  /// The current configuration: its values are the defaults of the questions,
  /// and other values are kept.
  std::optional<LaunchConfig> present = {};
  /// Expands a `~` in a typed path.
  std::filesystem::path home = {};
};

/// Asks for the machine, the processes and the precision, in the order of
/// Hugging Face's questionnaire. Repeats the question after an invalid answer.
ACCELERATE_INTERNAL LaunchConfig
ask_for_config(Prompter& prompter, const QuestionnaireOptions& options);

/// Repeats the question until the answer is yes or no.
ACCELERATE_INTERNAL bool
ask_yes_or_no(Prompter& prompter, const std::string& question, bool preset);

/// What `accelerate config default` writes: one process per GPU of this
/// machine, or one on its CPU.
ACCELERATE_INTERNAL LaunchConfig
default_config(int num_gpus, const std::string& mixed_precision);

} // namespace accelerate
