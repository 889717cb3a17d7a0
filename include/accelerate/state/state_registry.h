// SPDX-License-Identifier: Apache-2.0
// The state of a run: all objects that checkpoints contain, by name.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

/// Which ranks share the state of an object.
enum class StateScope {
  /// The same on every rank: weights, schedules, positions.
  kCommon,
  /// Different on each rank: generators, gradients during accumulation.
  kPerRank,
};

/// The state of a whole run. `prepare` adds models, optimizers, schedulers and
/// loaders; the run itself adds its scaler, generators and accumulation; users
/// add their own objects. Objects are not owned: a destroyed object is no
/// longer in the registry. Used by one thread.
///
///     auto counter = std::make_shared<Counter>();
///     accelerator.state().add("counter", counter);
///     const auto saved = accelerator.state().state_dict();
///     saved.section("optimizer").get<double>("groups.0.lr");
class ACCELERATE_API StateRegistry {
 public:
  StateRegistry();
  ~StateRegistry();
  StateRegistry(const StateRegistry&) = delete;
  StateRegistry& operator=(const StateRegistry&) = delete;

  /// Adds the object under `kind`, or if that is the name of a living object
  /// under `kind_1`, `kind_2` and so on: add objects in the same order in every
  /// run. Returns the name; for an object that is registered already, its
  /// existing name. Throws `UsageError` if the object is null, or the name is
  /// empty or contains dots.
  std::string add(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object,
      StateScope scope = StateScope::kCommon);
  /// Adds an object that may be missing in checkpoints, or in a run that loads
  /// one: `load_state` then only warns. Does nothing if the object is
  /// registered; a later `add` makes it an ordinary one. Returns its name,
  /// which changes if `add` needs it.
  std::string add_optional(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object);
  /// Whether a living object of that name was added by `add_optional`.
  bool is_optional(const std::string& name) const;
  /// The living objects by name, in the order in which they were added;
  /// optional ones last.
  std::vector<std::pair<std::string, std::shared_ptr<Stateful>>> objects()
      const;
  /// The name of an object; empty if it is not registered.
  std::string name_of(const Stateful& object) const;
  /// The scope of a living object; `kCommon` if there is none of that name.
  StateScope scope_of(const std::string& name) const;

  /// The state of all objects, each prefixed with the object's name and a dot.
  StateDict state_dict() const;
  /// Loads the part of each object. Throws `UsageError` before loading
  /// anything, naming all objects whose part is missing and all parts without
  /// an object.
  void load_state_dict(const StateDict& state);
  /// Like `load_state_dict`, with one state per object name. Objects named in
  /// `kept` are not changed.
  void load_states(
      const std::map<std::string, StateDict>& states,
      const std::set<std::string>& kept = {});
  /// Throws what `load_states` throws before it changes anything.
  void check_states(
      const std::map<std::string, StateDict>& states,
      const std::set<std::string>& kept = {}) const;
  /// Loads states that `check_states` has accepted.
  void put_states(
      const std::map<std::string, StateDict>& states,
      const std::set<std::string>& kept = {});

 private:
  struct Entry {
    std::string name;
    std::weak_ptr<Stateful> object;
    StateScope scope;
  };
  struct Optional {
    std::string kind;
    std::weak_ptr<Stateful> object;
  };
  using Named = std::vector<std::pair<std::string, std::shared_ptr<Stateful>>>;

  Named added() const;

  std::vector<Entry> entries_;
  std::vector<Optional> optional_;
};

} // namespace accelerate
