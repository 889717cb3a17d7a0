// SPDX-License-Identifier: Apache-2.0
// Saves and loads a whole run.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/checkpoint/job_name.h"
#include "core/checkpoint/numbered.h"
#include "core/observe/rank_record.h"
#include "core/process/run_report.h"
#include "training/comm/agreement.h"
#include "training/comm/first_value.h"
#include "training/device/host_copies.h"
#include "training/run/background_save.h"
#include "training/run/other_language.h"
#include "training/run/run_checkpoints.h"
#include "training/run/together.h"
#include "training/state/file_tensors.h"
#include "training/state/sliced_state.h"
#include "training/state/state_files.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kSaveState = "save_state";
constexpr const char* kLoadState = "load_state";
/// Marks the state of an object that a run may lack when it loads.
constexpr const char* kIsOptional = "is_optional";
constexpr const char* kLoadLatest = "load_state(\"latest\")";

int64_t milliseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// The states of the ranks that have saved their own.
std::vector<StatesByName> read_shards(
    const CheckpointReader& checkpoint,
    StateReader& reader) {
  std::vector<StatesByName> shards;
  for (int rank = 0; rank < checkpoint.manifest().world_size; ++rank) {
    if (const auto shard = checkpoint.rank_shard(rank)) {
      shards.push_back(reader.read(*shard));
    }
  }
  return shards;
}

/// The state with whole tensors in place of slices.
StateDict with_wholes(const StateDict& state, const StateDict& wholes) {
  StateDict filled = state;
  for (const auto& [name, value] : state) {
    if (std::holds_alternative<TensorSlice>(value)) {
      filled.set(name, wholes.get<at::Tensor>(name));
    }
  }
  return filled;
}

/// The state with copies of its tensors in host memory. Copies only slices
/// unless `is_whole`.
StateDict copied(const StateDict& state, bool is_whole, HostCopies& copies) {
  StateDict copied;
  for (const auto& [name, value] : state) {
    if (const auto* slice = std::get_if<TensorSlice>(&value)) {
      copied.set(
          name,
          TensorSlice{copies.copy(slice->values), slice->whole, slice->pieces});
    } else if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      if (is_whole) {
        // Tensors that files do not support are rejected by name when they are
        // written.
        copied.set(
            name, fits_into_files(*tensor) ? copies.copy(*tensor) : *tensor);
      }
    } else {
      copied.set(name, value);
    }
  }
  return copied;
}

int64_t saved_at(const fs::path& checkpoint) {
  return CheckpointReader(checkpoint).manifest().saved_at;
}

/// Throws `UsageError` if the checkpoint contains loaders that were not
/// prepared, and all other objects match.
void check_loaders(
    const StateRegistry& run,
    const StatesByName& states,
    const std::set<std::string>& kept) {
  const auto is_loader = [](const std::string& name) {
    return name.starts_with("loader") || name.starts_with("python_loader");
  };
  std::set<std::string> living;
  for (const auto& [name, object] : run.objects()) {
    if (!states.contains(name) && !kept.contains(name)) {
      return; // missing objects are reported first
    }
    living.insert(name);
  }
  bool is_any = false;
  for (const auto& [name, state] : states) {
    if (!living.contains(name) && !kept.contains(name)) {
      if (!is_loader(name)) {
        return;
      }
      is_any = true;
    }
  }
  if (!is_any) {
    return;
  }
  const auto count = [](const auto& names, const auto& name_of) {
    return std::count_if(names.begin(), names.end(), [&](const auto& entry) {
      return name_of(entry).starts_with("loader");
    });
  };
  const auto num_saved =
      count(states, [](const auto& entry) { return entry.first; });
  const auto num_prepared =
      count(living, [](const auto& name) { return name; });
  throw UsageError(str_cat(
      "[load_state] The checkpoint contains ",
      num_saved == 1 ? "a DataLoader" : str_cat(num_saved, " DataLoaders"),
      " but ",
      num_prepared == 0 ? "none" : str_cat("only ", num_prepared),
      " was prepared. Prepare the same objects before load_state()",
      is_python(run) ? ", or pass restore_loaders=False" : ""));
}

/// The newest checkpoint that one rank finds intact; an empty name if there is
/// none.
struct Proposal {
  int64_t saved_at = -1;
  std::string name = {};

  std::string text() const { return str_cat(saved_at, '/', name); }
  static Proposal parse(const std::string& text) {
    const auto slash = text.find('/');
    return {std::stoll(text.substr(0, slash)), text.substr(slash + 1)};
  }
};

/// Drops newer checkpoints that are damaged.
Proposal propose(
    std::vector<fs::path>& found,
    const RunCheckpoints::Complain& complain) {
  drop_damaged(found, complain);
  return found.empty()
             ? Proposal()
             : Proposal{saved_at(found.back()), found.back().filename()};
}

} // namespace

RunCheckpoints::RunCheckpoints(const RunContext& context)
    : context_(context),
      job_(first_value(context.group(), "accelerate/job", new_job_name())),
      host_copies_(std::make_shared<HostCopies>()),
      saving_(std::make_unique<BackgroundSave>()) {}

RunCheckpoints::~RunCheckpoints() = default;

void RunCheckpoints::shut_down() {
  const auto group = std::exchange(saving_group_, std::nullopt);
  wait_for_save();
}

bool RunCheckpoints::is_saving_main() const {
  return context_.options.checkpoints.save_on_each_node
             ? context_.topology().is_local_main()
             : context_.topology().rank == 0;
}

/// A checkpoint, or a rank's files of it, until it gets its final name.
struct RunCheckpoints::PendingSave {
  std::unique_ptr<CheckpointWriter> writer;
  std::unique_ptr<RankShardWriter> shard_writer;
  int rank = 0;
  Manifest manifest;
  std::vector<SavedObject> objects;

  const fs::path& stage() const {
    return writer ? writer->folder() : shard_writer->folder();
  }
  void write() {
    write_rank_shard(stage(), objects, rank, manifest);
    if (writer) {
      write_common(stage(), objects, manifest);
    } else {
      shard_writer->commit();
    }
  }
  void finish() {
    if (writer) {
      writer->commit(manifest);
    }
  }
};

void RunCheckpoints::begin_save(
    const fs::path& folder,
    const SaveWith& with,
    PendingSave& save) {
  save.rank = context_.topology().rank;
  save.manifest.moment = context_.progress->num_backwards;
  save.manifest.world_size = context_.topology().world_size;
  save.manifest.saved_at = milliseconds_now();
  save.manifest.is_of_all = with.is_of_all;
  save.manifest.is_of_machine = context_.options.checkpoints.save_on_each_node;
  save.manifest.job = job_;
  if (is_saving_main()) {
    save.writer =
        std::make_unique<CheckpointWriter>(folder, save.manifest.moment, job_);
  } else {
    save.shard_writer = std::make_unique<RankShardWriter>(
        folder,
        save.manifest.moment,
        context_.topology().rank,
        job_,
        with.is_of_all);
  }
  const auto extra = with.extra ? with.extra(save.stage()) : SaveWith::Extra();
  for (const auto& name : extra.files) {
    save.manifest.files[name] = record_of(save.stage() / name);
  }
  if (with.asynchronous) {
    host_copies_->restart();
  }
  for (const auto& [name, object] : context_.state->objects()) {
    if (extra.left_out.contains(name)) {
      continue;
    }
    const auto model = std::dynamic_pointer_cast<ModelContext>(object);
    SavedObject saved = {
        name,
        object->state_dict(),
        context_.state->scope_of(name) == StateScope::kPerRank,
        model ? model->model.tied : std::map<std::string, std::string>()};
    if (context_.state->is_optional(name)) {
      saved.state.set(kIsOptional, true);
    }
    if (with.asynchronous) {
      const bool is_all_ours = save.writer || saved.is_per_rank;
      saved.state = copied(saved.state, is_all_ours, *host_copies_);
    }
    save.objects.push_back(std::move(saved));
  }
}

void RunCheckpoints::save_state(const fs::path& folder, const SaveWith& with) {
  if (StepRecorder::get() != nullptr) {
    return; // `accelerate verify` leaves no files.
  }
  const PhaseScope phase(StepPhase::kCheckpoint);
  wait_for_save();
  if (with.is_of_all) {
    // If only some ranks save, all of them fail before a file is written.
    announce(context_.group(), kSaveState);
    finish_comparison(context_.group());
  }
  const auto save = std::make_shared<PendingSave>();
  const auto begin = [&] { begin_save(folder, with, *save); };
  // The function captures no references to this call, because it may outlive
  // it.
  const auto finish = [save,
                       reporter = &RunReporter::of_this_process(),
                       folder = fs::absolute(folder),
                       limit = with.total_limit] {
    save->finish();
    if (save->writer) {
      reporter->set_checkpoint(folder);
    }
    // The files of any rank may complete the checkpoint.
    if (limit && (save->writer || !save->manifest.is_of_all)) {
      rotate_checkpoints(folder.parent_path(), *limit);
    }
  };
  if (!with.asynchronous) {
    const auto write = [&] {
      begin();
      save->write();
    };
    if (with.is_of_all) {
      do_together(context_.group(), kSaveState, write);
      do_together(context_.group(), kSaveState, finish);
    } else {
      write();
      finish();
    }
    return;
  }
  const auto write = [save, copies = host_copies_] {
    copies->wait();
    save->write();
  };
  if (!with.is_of_all) {
    begin();
    saving_->start([write, finish] {
      write();
      finish();
    });
    return;
  }
  do_together(context_.group(), kSaveState, begin);
  if (!saving_group_) {
    // A separate group, because its collectives run concurrently with those of
    // training.
    saving_group_ = context_.group().duplicate();
  }
  saving_->start([write, finish, group = *saving_group_] {
    do_together(group, kSaveState, write);
    do_together(group, kSaveState, finish);
  });
}

void RunCheckpoints::wait_for_save() const {
  saving_->wait();
}

void RunCheckpoints::wait_for_saves_of_all() const {
  const PhaseScope phase(StepPhase::kCheckpoint);
  announce(context_.group(), kLoadState);
  finish_comparison(context_.group());
  do_together(context_.group(), kLoadState, [this] { wait_for_save(); });
}

void RunCheckpoints::fail_load_together(const std::exception_ptr& own) const {
  announce(context_.group(), kLoadState);
  finish_comparison(context_.group());
  fail_together(context_.group(), kLoadState, own);
}

std::vector<std::string> RunCheckpoints::load_state(
    const fs::path& folder,
    const std::set<std::string>& without) {
  // If only some ranks load, all of them fail before anything changes.
  wait_for_saves_of_all();
  const PhaseScope phase(StepPhase::kCheckpoint);
  LoadedState loaded;
  do_together(context_.group(), kLoadState, [&] {
    loaded = read_own_state(folder, without);
    check_loaders(*context_.state, loaded.states, loaded.kept);
    context_.state->check_states(loaded.states, loaded.kept);
  });
  do_together(context_.group(), kLoadState, [&] {
    context_.state->put_states(loaded.states, loaded.kept);
  });
  for (const auto& model : context_.living_models()) {
    model->engine->after_load();
  }
  return loaded.warnings;
}

RunCheckpoints::LoadedState RunCheckpoints::read_own_state(
    const fs::path& folder,
    const std::set<std::string>& without) const {
  LoadedState loaded;
  auto& states = loaded.states;
  auto& kept = loaded.kept;
  auto& warnings = loaded.warnings;
  read_checkpoint(folder, [&](const CheckpointReader& checkpoint) {
    checkpoint.check_shards();
    const Manifest& manifest = checkpoint.manifest();
    StateReader reader(checkpoint);
    states = reader.read(manifest);
    warnings = manifest.world_size == context_.topology().world_size
                   ? add_own_shard(checkpoint, reader, states)
                   : add_all_shards(checkpoint, reader, states);
  });
  kept = without;
  // Drop gradients and compression errors of steps that the loaded run never
  // made, even if the checkpoint has none.
  states.try_emplace(kAccumulation, Accumulation::nothing());
  for (const auto& [name, object] : context_.state->objects()) {
    if (!context_.assembly.engines.needs_state() &&
        std::dynamic_pointer_cast<ParallelEngine>(object)) {
      states.try_emplace(name);
    }
  }
  bool is_tracked = false;
  for (const auto& [name, object] : context_.state->objects()) {
    is_tracked |= name == kTrackersState;
    // Objects without per-rank state in the checkpoint stay unchanged.
    if (context_.state->scope_of(name) == StateScope::kPerRank &&
        !states.contains(name)) {
      kept.insert(name);
    }
  }
  for (auto& line : leave_optional(folder, states, kept)) {
    warnings.push_back(std::move(line));
  }
  if (!states.contains(kTrackersState)) {
    kept.insert(kTrackersState);
  } else if (!is_tracked) {
    states.erase(kTrackersState);
  }
  if (auto line = skip_other_language(folder, *context_.state, states, kept)) {
    warnings.push_back(std::move(*line));
  }
  return loaded;
}

std::vector<std::string> RunCheckpoints::leave_optional(
    const fs::path& folder,
    StatesByName& states,
    std::set<std::string>& kept) const {
  std::vector<std::string> warnings;
  std::set<std::string> living;
  for (const auto& [name, object] : context_.state->objects()) {
    living.insert(name);
    if (!states.contains(name) && !kept.contains(name) &&
        context_.state->is_optional(name)) {
      kept.insert(name);
      warnings.push_back(str_cat(
          "[load_state] '",
          folder.string(),
          "' has no state for '",
          name,
          "', which was not passed to prepare(). It keeps its current "
          "state"));
    }
  }
  std::erase_if(states, [&](const auto& entry) {
    const auto& [name, state] = entry;
    if (living.contains(name) || !state.contains(kIsOptional)) {
      return false;
    }
    warnings.push_back(str_cat(
        "[load_state] '",
        folder.string(),
        "' contains the state of '",
        name,
        "', which this run does not have. Create the scheduler before "
        "load_state() to restore it"));
    return true;
  });
  return warnings;
}

std::vector<std::string> RunCheckpoints::add_own_shard(
    const CheckpointReader& checkpoint,
    StateReader& reader,
    StatesByName& states) const {
  const auto shard = checkpoint.rank_shard(context_.topology().rank);
  if (shard) {
    for (auto& [name, state] : reader.read(*shard)) {
      // These states contain the slices of objects that ranks hold together.
      for (const auto& [key, value] : state) {
        states[name].set(key, value);
      }
      states.try_emplace(name);
    }
    // The checkpoint may have been saved with other layers or units.
    const auto needs = slice_needs();
    const bool fits = StateReader::fits(states, needs);
    reader.fit(
        fits ? std::vector<StatesByName>() : read_shards(checkpoint, reader),
        needs,
        states);
    reader.finish(states);
    return {};
  }
  // Rank 0 has also written the manifest.
  if (checkpoint.manifest().is_of_all || context_.topology().rank == 0) {
    throw DataError(str_cat(
        "[load_state] '",
        checkpoint.folder().string(),
        "' is incomplete: the data of rank ",
        context_.topology().rank,
        " is missing. Check that every machine can read the folder"));
  }
  reader.fit({}, slice_needs(), states);
  reader.finish(states);
  return {str_cat(
      "[load_state] '",
      checkpoint.folder().string(),
      "' has no data from rank ",
      context_.topology().rank,
      ", which did not call save_state(). The random number generators of this "
      "rank keep their current state")};
}

StateReader::Needs RunCheckpoints::slice_needs() const {
  return [objects = context_.state->objects()](
             const std::string& object, const StateDict& saved)
             -> std::optional<std::map<std::string, TensorPieces>> {
    for (const auto& [name, living] : objects) {
      const auto* holder = dynamic_cast<const SliceHolder*>(living.get());
      if (name == object && holder != nullptr) {
        return holder->pieces_needed(saved);
      }
    }
    return std::nullopt;
  };
}

std::vector<std::string> RunCheckpoints::add_all_shards(
    const CheckpointReader& checkpoint,
    StateReader& reader,
    StatesByName& states) const {
  const Manifest& manifest = checkpoint.manifest();
  const auto shards = read_shards(checkpoint, reader);
  const bool is_whole =
      shards.size() == static_cast<size_t>(manifest.world_size);
  if (!is_whole && manifest.is_of_all) {
    throw DataError(str_cat(
        "[load_state] '",
        checkpoint.folder().string(),
        "' is incomplete: it has data from only ",
        shards.size(),
        " of ",
        manifest.world_size,
        " ranks. Load another checkpoint"));
  }
  reader.fit(shards, slice_needs(), states);
  reader.finish(states);
  std::vector<StateDict> accumulations;
  for (const auto& shard : shards) {
    const auto found = shard.find(kAccumulation);
    if (is_whole && found != shard.end()) {
      reader.finish({*found});
      accumulations.push_back(
          with_wholes(found->second, states[kAccumulation]));
    }
  }
  const auto joined =
      Accumulation::joined(accumulations, context_.topology().world_size);
  if (joined) {
    states[kAccumulation] = *joined;
  }
  return {str_cat(
      "[load_state] '",
      checkpoint.folder().string(),
      "' was saved by ",
      manifest.world_size,
      " processes and is being loaded by ",
      context_.topology().world_size,
      ". Random number generators keep their current state",
      joined ? "" : ", and partly accumulated gradients are discarded")};
}

fs::path RunCheckpoints::next_checkpoint() const {
  const auto& options = context_.options.checkpoints;
  if (options.folder.empty()) {
    throw UsageError(
        "[save_state] No folder given. Pass a folder, or create the "
        "Accelerator with .checkpoints = {.folder = \"run\"}");
  }
  if (options.total_limit && *options.total_limit < 1) {
    throw ConfigError(str_cat(
        "[save_state] total_limit is ",
        *options.total_limit,
        ". Use at least 1"));
  }
  wait_for_save();
  const auto parent = options.folder / kCheckpoints;
  auto number = next_checkpoint_number(parent);
  if (context_.topology().world_size > 1) {
    // Use rank 0's number, because a rank that looks later may see a folder
    // that another rank has just created.
    number = std::stoll(
        context_.group().all_gather_bytes(std::to_string(number)).front());
  }
  return numbered_checkpoint(parent, number);
}

std::optional<fs::path> RunCheckpoints::latest_intact_on_this_rank(
    const Complain& complain) const {
  wait_for_save();
  return latest_intact_checkpoint(
      context_.options.checkpoints.folder / kCheckpoints, complain);
}

std::optional<fs::path> RunCheckpoints::latest_intact_on_all_ranks(
    const fs::path& parent,
    const Complain& complain) const {
  announce(context_.group(), kLoadLatest);
  finish_comparison(context_.group());
  std::vector<fs::path> found; // oldest first
  do_together(context_.group(), kLoadState, [&] {
    found = complete_checkpoints(parent, complain);
  });
  while (true) {
    Proposal own;
    do_together(
        context_.group(), kLoadState, [&] { own = propose(found, complain); });
    std::vector<Proposal> proposed;
    for (const auto& text : context_.group().all_gather_bytes(own.text())) {
      proposed.push_back(Proposal::parse(text));
    }
    const auto is_own = [&](const auto& other) {
      return other.name == own.name;
    };
    if (std::all_of(proposed.begin(), proposed.end(), is_own)) {
      return found.empty() ? std::nullopt : std::optional(found.back());
    }
    // The rank that proposes the oldest checkpoint lacks the newer ones.
    const auto oldest = std::min_element(
        proposed.begin(), proposed.end(), [](const auto& a, const auto& b) {
          return a.saved_at < b.saved_at;
        });
    while (!found.empty() && found.back().filename() != oldest->name &&
           saved_at(found.back()) >= oldest->saved_at) {
      if (complain) {
        complain(str_cat(
            "[load_state] '",
            found.back().string(),
            "' is missing or damaged on rank ",
            oldest - proposed.begin(),
            "; trying an older checkpoint"));
      }
      found.pop_back();
    }
  }
}

fs::path RunCheckpoints::find_checkpoint(
    const fs::path& folder,
    const Complain& complain) const {
  if (folder != kLatestCheckpoint) {
    return folder;
  }
  if (is_on_any_rank(context_.group(), kLoadLatest, fs::is_directory(folder))) {
    return folder;
  }
  wait_for_saves_of_all();
  const auto parent = context_.options.checkpoints.folder / kCheckpoints;
  auto found = latest_intact_on_all_ranks(parent, complain);
  if (!found) {
    throw SystemError(str_cat(
        "[load_state] No complete checkpoint in '",
        parent.string(),
        "'. Check the folder, or save a checkpoint first"));
  }
  return *found;
}

void RunCheckpoints::save_model(
    const ModelContext& model,
    const fs::path& folder,
    const safetensors::SaveOptions& options,
    const std::vector<std::string>& order) const {
  const bool is_main = is_saving_main();
  if (model.is_spread()) {
    // If only some ranks save, all of them fail before a file is written.
    announce(context_.group(), "save_model");
    finish_comparison(context_.group());
  }
  std::optional<ModelFiles> files;
  // If an error occurs with files, other ranks must not remain in a gather.
  std::exception_ptr problem;
  const auto attempt = [&](auto&& work) {
    try {
      if (is_main && !problem) {
        work();
      }
    } catch (...) {
      problem = std::current_exception();
    }
  };
  attempt([&] {
    files.emplace(
        folder,
        SavedObject{
            .name = context_.state->name_of(model),
            .state = model.state_dict(),
            .tied = model.model.tied},
        options,
        order);
  });
  if (model.is_spread()) {
    model.engine->visit_whole_parameters(
        is_main, [&](size_t index, const at::Tensor& value) {
          const auto& name = model.model.names[index];
          attempt([&] {
            if (files->lacks(name)) {
              files->write(name, value);
            }
          });
        });
  }
  attempt([&] { files->commit(); });
  if (problem) {
    std::rethrow_exception(problem);
  }
}

} // namespace accelerate
