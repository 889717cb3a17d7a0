// SPDX-License-Identifier: Apache-2.0
// The questions of `accelerate config`.
#pragma once

#include "config/launch_config.h"
#include "config/prompter.h"

namespace accelerate {

struct QuestionnaireOptions {
  /// GPUs of this machine: what is proposed for it.
  int num_gpus = 0;
  /// For a `~` in a typed path.
  std::filesystem::path home = {};
};

/// Asks for the machine, the processes and the precision, in the order of
/// Hugging Face's questionnaire; answers that do not do are asked for again.
ACCELERATE_API LaunchConfig
ask_for_config(Prompter& prompter, const QuestionnaireOptions& options);

/// What `accelerate config default` writes: every GPU of this machine, or one
/// process on its CPU.
ACCELERATE_API LaunchConfig
default_config(int num_gpus, const std::string& mixed_precision);

} // namespace accelerate
