// SPDX-License-Identifier: Apache-2.0
// Saving and loading of a whole run.
#include <ATen/ATen.h>

#include <chrono>

#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"
#include "process/stop_request.h"
#include "run/training_run.h"
#include "state/state_files.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kCheckpointStart = "checkpoint_";

int64_t milliseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// N of "checkpoint_N"; nothing for other names.
std::optional<int64_t> number_of(const fs::path& folder) {
  const auto name = folder.filename().string();
  const auto digits = name.starts_with(kCheckpointStart)
                          ? name.substr(std::string(kCheckpointStart).size())
                          : "";
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

int64_t next_number(const fs::path& folder) {
  int64_t next = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    next = std::max(next, number_of(it->path()).value_or(-1) + 1);
  }
  return next;
}

/// What `work` threw, as text; empty where it did not.
template <class Work>
std::string problem_of(Work&& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// The first rank's problem, on all ranks.
void agree(const ProcessGroup& group, const std::string& own) {
  const auto all = group.all_gather_bytes(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) {
      throw SystemError(
          static_cast<int>(rank) == group.rank()
              ? all[rank]
              : str_cat("[save_state] rank ", rank, " failed: ", all[rank]));
    }
  }
}

} // namespace

StateDict TrainingRun::Progress::state_dict() const {
  StateDict state;
  state.set("num_backwards", num_backwards);
  return state;
}
void TrainingRun::Progress::load_state_dict(const StateDict& state) {
  num_backwards = state.get<int64_t>("num_backwards");
}

bool TrainingRun::is_saving_main() const {
  return options_.checkpoints.save_on_each_node ? topology().is_local_main()
                                                : topology().rank == 0;
}

void TrainingRun::save_state(const fs::path& folder, const SaveWith& with)
    const {
  const int64_t moment = progress_->num_backwards;
  std::unique_ptr<CheckpointWriter> writer;
  std::unique_ptr<RankPlace> place;
  Manifest manifest;
  const auto write = [&] {
    if (is_saving_main()) {
      writer = std::make_unique<CheckpointWriter>(folder, moment);
    } else {
      place = std::make_unique<RankPlace>(folder, moment, topology().rank);
    }
    const auto stage = writer ? writer->folder() : place->folder();
    const auto left_out =
        with.extra ? with.extra(stage) : std::set<std::string>();
    std::vector<SavedObject> objects;
    for (const auto& [name, object] : state_->objects()) {
      if (!left_out.contains(name)) {
        const auto model = std::dynamic_pointer_cast<ModelContext>(object);
        objects.push_back(
            {name,
             object->state_dict(),
             state_->scope_of(name) == StateScope::kPerRank,
             model ? model->model.tied : std::map<std::string, std::string>()});
      }
    }
    manifest.moment = moment;
    manifest.world_size = topology().world_size;
    manifest.saved_at = milliseconds_now();
    manifest.is_of_all = with.is_of_all;
    write_rank_part(stage, objects, topology().rank, manifest);
    if (writer) {
      write_common(stage, objects, manifest);
    } else {
      place->commit();
    }
  };
  const auto finish = [&] {
    if (writer) {
      writer->commit(manifest);
    }
  };
  if (with.is_of_all) {
    agree(group(), problem_of(write));
    agree(group(), problem_of(finish));
  } else {
    write();
    finish();
  }
}

bool TrainingRun::should_stop() const {
  watch_for_stop_requests();
  return is_on_any_rank(group(), "should_stop", is_stop_requested());
}

std::vector<std::string> TrainingRun::load_state(
    const fs::path& folder,
    const std::set<std::string>& without) {
  const CheckpointReader checkpoint(folder);
  const Manifest& manifest = checkpoint.manifest();
  auto states = read_states(checkpoint, manifest);
  std::vector<std::string> warnings;
  auto kept = without;
  std::optional<Manifest> part;
  if (manifest.world_size == topology().world_size) {
    part = checkpoint.rank_part(topology().rank);
  }
  if (part) {
    for (auto& [name, state] : read_states(checkpoint, *part)) {
      // An object that ranks hold together has its slices here.
      for (const auto& [key, value] : state) {
        states[name].set(key, value);
      }
      states.try_emplace(name);
    }
  } else if (manifest.world_size != topology().world_size) {
    warnings.push_back(str_cat(
        "[load_state] '",
        folder.string(),
        "' was saved by ",
        manifest.world_size,
        " processes and is loaded by ",
        topology().world_size,
        ": generators go on as they are, and a window of gradients that was "
        "not full begins anew"));
  } else if (manifest.is_of_all) {
    throw DataError(str_cat(
        "[load_state] '",
        folder.string(),
        "' lacks the part of rank ",
        topology().rank,
        ", though all ranks had saved it; is the folder seen by all "
        "machines?"));
  } else {
    warnings.push_back(str_cat(
        "[load_state] '",
        folder.string(),
        "' has no part of rank ",
        topology().rank,
        ", which did not call save_state: its generators go on as they are"));
  }
  for (const auto& [name, object] : state_->objects()) {
    if (!part && state_->scope_of(name) == StateScope::kPerRank) {
      kept.insert(name);
    }
  }
  state_->load_parts(states, kept);
  return warnings;
}

fs::path TrainingRun::next_checkpoint() const {
  const auto& options = options_.checkpoints;
  if (options.folder.empty()) {
    throw UsageError(
        "[save_state] got no folder, and the Accelerator has none for "
        "checkpoints; give one, or make it with .checkpoints = {.folder = "
        "\"run\"}");
  }
  if (options.total_limit && *options.total_limit < 1) {
    throw ConfigError(str_cat(
        "[save_state] got total_limit ",
        *options.total_limit,
        ", expected at least 1"));
  }
  const auto parent = options.folder / kCheckpoints;
  auto number = next_number(parent);
  if (topology().world_size > 1) {
    // A rank that looks later may see what another has begun.
    number =
        std::stoll(group().all_gather_bytes(std::to_string(number)).front());
  }
  return parent / str_cat(kCheckpointStart, number);
}

void TrainingRun::rotate_checkpoints() const {
  const auto& options = options_.checkpoints;
  if (!options.total_limit || !is_saving_main()) {
    return;
  }
  std::vector<fs::path> numbered;
  for (auto& path : complete_checkpoints(options.folder / kCheckpoints)) {
    if (number_of(path)) {
      numbered.push_back(std::move(path));
    }
  }
  std::sort(numbered.begin(), numbered.end(), [](const auto& a, const auto& b) {
    return *number_of(a) < *number_of(b);
  });
  const auto limit = static_cast<size_t>(*options.total_limit);
  for (size_t i = 0; i + limit < numbered.size(); ++i) {
    remove_checkpoint(numbered[i]);
  }
}

std::optional<fs::path> TrainingRun::latest_checkpoint() const {
  auto found = complete_checkpoints(options_.checkpoints.folder / kCheckpoints);
  return found.empty() ? std::nullopt : std::optional(std::move(found.back()));
}

fs::path TrainingRun::find_checkpoint(const fs::path& folder) const {
  if (folder != kLatestCheckpoint || fs::is_directory(folder)) {
    return folder;
  }
  auto found = latest_checkpoint();
  if (!found) {
    throw SystemError(str_cat(
        "[load_state] there is no complete checkpoint in '",
        (options_.checkpoints.folder / kCheckpoints).string(),
        "'; has the run saved one, and is this its folder?"));
  }
  return *found;
}

void TrainingRun::save_model(
    const ModelContext& model,
    const fs::path& folder,
    const safetensors::SaveOptions& options) const {
  if (is_saving_main()) {
    write_model_files(
        folder,
        {.name = state_->name_of(model),
         .state = model.state_dict(),
         .tied = model.model.tied},
        options);
  }
}

} // namespace accelerate
