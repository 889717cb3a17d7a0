// SPDX-License-Identifier: Apache-2.0
#include "core/config/questionnaire.h"

#include <algorithm>

#include "accelerate/training/precision_name.h"
#include "core/base/parse.h"
#include "core/base/str.h"
#include "core/config/fields.h"

namespace accelerate {
namespace {

// With more machines than this, a menu is not readable.
constexpr int kLongestMenu = 10;

class Questionnaire {
 public:
  Questionnaire(Prompter& prompter, const QuestionnaireOptions& options)
      : prompter_(prompter),
        options_(options),
        config_(options.present.value_or(LaunchConfig{})) {}

  LaunchConfig ask() {
    ask_kind();
    ask_machines();
    if (is_distributed_) {
      ask_yes_no("debug");
    }
    ask_mpirun();
    ask_num_processes();
    ask_sharding();
    if (config_.cpu) {
      reset({"gpu_ids", "enable_cpu_affinity"});
    } else {
      ask_text("gpu_ids", "all");
      ask_yes_no("enable_cpu_affinity");
    }
    ask_precision();
    return config_;
  }

 private:
  bool is_several() const {
    return config_.num_processes.value_or(1) > 1 ||
           config_.num_machines.most > 1;
  }

  void ask_kind() {
    std::vector<std::string> kinds = {
        "One process", "Several processes on the CPU"};
    if (options_.num_gpus > 0) {
      kinds.emplace_back("Several GPUs, one process each");
    }
    const bool is_for_gpus =
        options_.present ? is_several() && !config_.cpu : options_.num_gpus > 1;
    const size_t preset = is_for_gpus && options_.num_gpus > 0 ? 2
                          : is_several()                       ? 1
                                                               : 0;
    const size_t kind = prompter_.choose("How do you train?", kinds, preset);
    is_distributed_ = kind != 0;
    config_.multi_gpu = kind == 2;
    if (kind == 0 && options_.num_gpus > 0) {
      ask_yes_no("cpu");
    } else {
      config_.cpu = kind != 2;
    }
  }

  void ask_machines() {
    if (is_distributed_) {
      ask_text("num_machines", "1");
    } else {
      reset({"num_machines"});
    }
    if (config_.num_machines.most == 1) {
      reset({"machine_rank", "main_process_ip", "main_process_port"});
      return;
    }
    const int last = config_.num_machines.most - 1;
    if (last < kLongestMenu) {
      std::vector<std::string> ranks;
      for (int rank = 0; rank <= last; ++rank) {
        ranks.push_back(str_cat("machine ", rank));
      }
      config_.machine_rank = static_cast<int>(prompter_.choose(
          question("machine_rank"),
          ranks,
          static_cast<size_t>(std::min(config_.machine_rank, last))));
    } else {
      ask_until("machine_rank", "0", [&] {
        return config_.machine_rank <= last
                   ? std::string()
                   : str_cat("a number from 0 to ", last);
      });
    }
    ask_until("main_process_ip", "", [&] {
      return config_.main_process_ip.empty() ? "a host name or an IP address"
                                             : std::string();
    });
    ask_text("main_process_port", std::to_string(kDefaultMainProcessPort));
  }

  void ask_mpirun() {
    const bool is_possible = is_distributed_ && config_.cpu;
    const bool is_present = !config_.mpirun_hostfile.empty();
    if (!is_possible ||
        !ask_yes_or_no(
            prompter_, "Start the processes with mpirun?", is_present)) {
      reset({"mpirun_hostfile"});
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
    // The current number of processes may be for another number of machines.
    if (!explain_count().empty()) {
      config_.num_processes.reset();
    }
    const int machines = config_.num_machines.most;
    const int proposed =
        config_.multi_gpu ? options_.num_gpus * machines : machines;
    ask_until(
        "num_processes",
        std::to_string(std::max(least_count(), proposed)),
        [&] { return explain_count(); });
  }

  int least_count() const {
    const int machines = config_.num_machines.most;
    return config_.multi_gpu ? std::max(2, machines) : machines;
  }

  /// What the number of processes must be; empty if the current one is valid.
  std::string explain_count() const {
    const int machines = config_.num_machines.most;
    const int most = options_.num_gpus * machines;
    const int count = config_.num_processes.value_or(0);
    if (count < least_count()) {
      return str_cat("a number of at least ", least_count());
    }
    if (count % machines != 0) {
      return str_cat("a multiple of ", machines, ", the number of machines");
    }
    return config_.multi_gpu && count > most
               ? str_cat("at most ", most, ", one process per GPU")
               : std::string();
  }

  void ask_sharding() {
    if (is_distributed_) {
      ask_yes_no("use_fsdp");
    }
    if (is_distributed_ && config_.use_fsdp) {
      ask_fsdp();
    } else {
      reset_group("use_fsdp");
    }
    if (is_distributed_ && !config_.use_fsdp) {
      ask_yes_no("use_deepspeed");
    }
    if (is_distributed_ && !config_.use_fsdp && config_.use_deepspeed) {
      ask_deepspeed();
    } else {
      reset_group("use_deepspeed");
    }
  }

  void ask_fsdp() {
    config_.fsdp_version = config_.fsdp_version.value_or(2);
    ask_yes_no("fsdp_reshard_after_forward");
    const std::string policy = choose_text("fsdp_auto_wrap_policy");
    if (policy == "TRANSFORMER_BASED_WRAP") {
      ask_text("fsdp_transformer_layer_cls_to_wrap", "auto");
    } else {
      reset({"fsdp_transformer_layer_cls_to_wrap"});
    }
    if (policy == "SIZE_BASED_WRAP") {
      ask_text("fsdp_min_num_params", "1000000");
    } else {
      reset({"fsdp_min_num_params"});
    }
    ask_yes_no("fsdp_activation_checkpointing");
  }

  void ask_deepspeed() {
    ask_text("deepspeed_config_file", "auto");
    if (config_.deepspeed_config_file.empty()) {
      ask_text("zero_stage", "2");
      ask_text("gradient_accumulation_steps", "1");
      ask_text("gradient_clipping", "1.0");
    } else { // the user's machine has them
      reset(
          {"zero_stage",
           "gradient_clipping",
           "offload_optimizer_device",
           "offload_param_device",
           "zero3_save_16bit_model",
           "mixed_precision"});
    }
  }

  void ask_precision() {
    if (!config_.deepspeed_config_file.empty()) {
      return;
    }
    std::vector<std::string> choices;
    size_t preset = 0;
    for (const PrecisionName& row : precision_names()) {
      if (row.runs_on_cpu || !config_.cpu) {
        preset = row.name == config_.mixed_precision ? choices.size() : preset;
        choices.emplace_back(row.name);
      }
    }
    const size_t chosen =
        prompter_.choose(question("mixed_precision"), choices, preset);
    config_.mixed_precision = choices[chosen];
  }

  /// Shows a menu of the field's choices. Returns the chosen one.
  std::string choose_text(const char* name) {
    const Field& field = *find_field(name);
    const std::vector<std::string> choices(
        field.choices.begin(), field.choices.end());
    const auto present =
        std::find(choices.begin(), choices.end(), format_field(config_, field));
    const size_t chosen = prompter_.choose(
        question(name),
        choices,
        present == choices.end()
            ? 0
            : static_cast<size_t>(present - choices.begin()));
    assign_field(config_, field, {choices[chosen], "typed"});
    return choices[chosen];
  }

  void reset(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      reset(*find_field(name));
    }
  }

  void reset_group(const char* name) {
    for (const Field& field : launch_fields()) {
      if (field.group == find_field(name)->group) {
        reset(field);
      }
    }
  }

  void reset(const Field& field) {
    std::visit(
        [&](auto member) { config_.*member = LaunchConfig{}.*member; },
        field.member);
  }

  static std::string question(const char* name) {
    return std::string(find_field(name)->question);
  }

  void ask_text(const char* name, const std::string& preset) {
    ask_until(name, preset, [] { return std::string(); });
  }

  /// Repeats the question until the field accepts the answer and `complaint` is
  /// empty. A value in the current configuration replaces `preset`.
  template <class Complaint>
  void
  ask_until(const char* name, const std::string& preset, Complaint complaint) {
    const Field& field = *find_field(name);
    const std::string present = format_field(config_, field);
    const bool is_set = present != format_field(LaunchConfig{}, field);
    while (true) {
      const std::string answer =
          prompter_.ask(question(name), is_set ? present : preset);
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
    const Field& field = *find_field(name);
    const bool is_on = format_field(config_, field) == "true";
    const bool answer = ask_yes_or_no(prompter_, question(name), is_on);
    assign_field(config_, field, {answer ? "true" : "false", "typed"});
  }

  Prompter& prompter_;
  const QuestionnaireOptions& options_;
  LaunchConfig config_;
  bool is_distributed_ = false;
};

} // namespace

bool ask_yes_or_no(
    Prompter& prompter,
    const std::string& question,
    bool preset) {
  while (true) {
    const auto answer =
        parse_bool(prompter.ask(question + " (yes/no)", preset ? "yes" : "no"));
    if (answer) {
      return *answer;
    }
    prompter.say("Please enter yes or no.");
  }
}

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
  config.num_processes = default_num_local(num_gpus);
  return config;
}

} // namespace accelerate
