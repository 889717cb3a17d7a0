// SPDX-License-Identifier: Apache-2.0
#include "config/questionnaire.h"

#include <algorithm>

#include "accelerate/precision_name.h"
#include "base/parse.h"
#include "base/str.h"
#include "config/fields.h"

namespace accelerate {
namespace {

// More machines than this do not make a readable menu.
constexpr int kLongestMenu = 10;

class Questionnaire {
 public:
  Questionnaire(Prompter& prompter, const QuestionnaireOptions& options)
      : prompter_(prompter), options_(options) {}

  LaunchConfig ask() {
    ask_machine_type();
    if (is_distributed_) {
      ask_machines();
      ask_yes_no("debug");
    } else {
      ask_yes_no("cpu");
    }
    if (is_distributed_ && config_.cpu) {
      ask_mpirun();
    }
    ask_num_processes();
    if (is_distributed_ && config_.cpu) {
      ask_sharding();
    }
    if (!config_.cpu) {
      ask_text("gpu_ids", "all");
      ask_yes_no("enable_cpu_affinity");
    }
    ask_precision();
    return config_;
  }

 private:
  void ask_machine_type() {
    const size_t preset = options_.num_gpus > 1 ? 2 : 0;
    const size_t type = prompter_.choose(
        "Which kind of run?",
        {"One process", "Several processes on CPUs", "Several GPUs"},
        preset);
    is_distributed_ = type != 0;
    config_.cpu = type == 1;
    config_.multi_gpu = type == 2;
  }

  void ask_machines() {
    ask_text("num_machines", "1");
    if (config_.num_machines.most == 1) {
      return;
    }
    if (config_.num_machines.most <= kLongestMenu) {
      std::vector<std::string> ranks;
      for (int rank = 0; rank < config_.num_machines.most; ++rank) {
        ranks.push_back(str_cat("machine ", rank));
      }
      config_.machine_rank = static_cast<int>(
          prompter_.choose(question("machine_rank"), ranks, 0));
    } else {
      ask_until("machine_rank", "0", [&] {
        return config_.machine_rank < config_.num_machines.most
                   ? ""
                   : str_cat("at most ", config_.num_machines.most - 1);
      });
    }
    ask_until("main_process_ip", "", [&] {
      return config_.main_process_ip.empty() ? "a host name or an IP address"
                                             : std::string();
    });
    ask_text("main_process_port", std::to_string(kDefaultMainProcessPort));
  }

  void ask_mpirun() {
    if (!yes_no("Start the processes with mpirun?")) {
      return;
    }
    ask_text("mpirun_hostfile", "~/hostfile");
    const std::string path = config_.mpirun_hostfile.string();
    if (path.starts_with("~/")) {
      config_.mpirun_hostfile = options_.home / path.substr(2);
    }
  }

  void ask_num_processes() {
    if (!is_distributed_) {
      config_.num_processes = 1;
      return;
    }
    const int least =
        config_.num_machines.most == 1 && config_.multi_gpu ? 2 : 1;
    const int proposed = config_.multi_gpu
                             ? options_.num_gpus * config_.num_machines.most
                             : config_.num_machines.most;
    ask_until("num_processes", std::to_string(std::max(least, proposed)), [&] {
      return config_.num_processes.value_or(0) >= least
                 ? ""
                 : str_cat("a number of at least ", least);
    });
  }

  void ask_sharding() {
    ask_yes_no("use_fsdp");
    if (!config_.use_fsdp) {
      ask_deepspeed();
      return;
    }
    config_.fsdp_version = 2;
    ask_yes_no("fsdp_reshard_after_forward");
    const auto& policies = find_field("fsdp_auto_wrap_policy")->choices;
    const std::vector<std::string> choices(policies.begin(), policies.end());
    const size_t chosen =
        prompter_.choose(question("fsdp_auto_wrap_policy"), choices, 0);
    config_.fsdp_auto_wrap_policy = choices[chosen];
    if (chosen == 0) {
      ask_text("fsdp_transformer_layer_cls_to_wrap", "auto");
    } else if (chosen == 1) {
      ask_text("fsdp_min_num_params", "1000000");
    }
    ask_yes_no("fsdp_activation_checkpointing");
  }

  void ask_deepspeed() {
    ask_yes_no("use_deepspeed");
    if (!config_.use_deepspeed) {
      return;
    }
    ask_text("deepspeed_config_file", "auto");
    if (config_.deepspeed_config_file.empty()) {
      ask_text("zero_stage", "2");
      ask_text("gradient_accumulation_steps", "1");
      ask_text("gradient_clipping", "1.0");
    }
  }

  void ask_precision() {
    // The file says it.
    if (!config_.deepspeed_config_file.empty()) {
      return;
    }
    std::vector<std::string> choices;
    for (const PrecisionName& row : precision_names()) {
      if (row.runs_on_cpu || !config_.cpu) {
        choices.emplace_back(row.name);
      }
    }
    const size_t chosen =
        prompter_.choose(question("mixed_precision"), choices, 0);
    config_.mixed_precision = choices[chosen];
  }

  static std::string question(const char* name) {
    return std::string(find_field(name)->question);
  }

  void ask_text(const char* name, const std::string& preset) {
    ask_until(name, preset, [] { return std::string(); });
  }

  /// Asks until the field takes the answer and `complaint` has nothing to say.
  template <class Complaint>
  void
  ask_until(const char* name, const std::string& preset, Complaint complaint) {
    const Field& field = *find_field(name);
    while (true) {
      const std::string answer = prompter_.ask(question(name), preset);
      std::string expected;
      try {
        assign_field(config_, field, {answer, "typed"});
        expected = complaint();
      } catch (const ConfigError&) {
        expected = field.check != nullptr ? field.check(answer) : "";
        expected = expected.empty() ? expectation(field) : expected;
      }
      if (expected.empty()) {
        return;
      }
      prompter_.say("Please enter " + expected + ".");
    }
  }

  void ask_yes_no(const char* name) {
    assign_field(
        config_,
        *find_field(name),
        {yes_no(question(name)) ? "true" : "false", "typed"});
  }

  bool yes_no(const std::string& text) {
    while (true) {
      const auto answer = parse_bool(prompter_.ask(text + " yes or no", "no"));
      if (answer) {
        return *answer;
      }
      prompter_.say("Please enter yes or no.");
    }
  }

  Prompter& prompter_;
  const QuestionnaireOptions& options_;
  LaunchConfig config_;
  bool is_distributed_ = false;
};

} // namespace

LaunchConfig ask_for_config(
    Prompter& prompter,
    const QuestionnaireOptions& options) {
  return Questionnaire(prompter, options).ask();
}

LaunchConfig default_config(int num_gpus, const std::string& mixed_precision) {
  LaunchConfig config;
  assign_field(
      config,
      *find_field("mixed_precision"),
      {mixed_precision, "--mixed_precision"});
  config.cpu = num_gpus == 0;
  config.multi_gpu = num_gpus > 1;
  config.num_processes = std::max(1, num_gpus);
  return config;
}

} // namespace accelerate
