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
  /// The state is the same on every rank: weights, schedules, positions.
  kCommon,
  /// The state is different on each rank: generators, gradients during
  /// accumulation.
  kPerRank,
};

/// The state of a whole run. `prepare` adds models, optimizers, schedulers and
/// loaders. The run itself adds its scaler, generators and the state of
/// gradient accumulation. You can add your own objects. The registry does not
/// own objects: an object that is destroyed disappears from the registry. Use
/// it from one thread.
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

  /// Adds the object under the name `kind`. If an existing object has this
  /// name, uses `kind_1`, `kind_2` and so on, so add objects in the same order
  /// in every run. Returns the name. If the object is already registered,
  /// returns its existing name. Throws `UsageError` if the object is null, or
  /// if the name is empty or contains dots.
  std::string add(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object,
      StateScope scope = StateScope::kCommon);
  /// Adds an object that may be missing in checkpoints, or in a run that loads
  /// a checkpoint. In these cases, `load_state` only warns. Does nothing if the
  /// object is already registered. A later `add` makes it an ordinary object.
  /// Returns the name of the object. The name changes if a later `add` uses it
  /// for another object.
  std::string add_optional(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object);
  /// Whether an existing object with this name was added by `add_optional`.
  bool is_optional(const std::string& name) const;
  /// The existing objects and their names, in the order in which they were
  /// added. Optional objects come last.
  std::vector<std::pair<std::string, std::shared_ptr<Stateful>>> objects()
      const;
  /// The name of an object. Empty if it is not registered.
  std::string name_of(const Stateful& object) const;
  /// The scope of the object with this name, or `kCommon` if there is no such
  /// object.
  StateScope scope_of(const std::string& name) const;

  /// The state of all objects, each prefixed with the object's name and a dot.
  StateDict state_dict() const;
  /// Loads the state of each object. If an object has no state in `state`, or a
  /// state has no object, throws a `UsageError` that names all of them, before
  /// it loads anything.
  void load_state_dict(const StateDict& state);
  /// Like `load_state_dict`, but with one state per object name. Objects named
  /// in `kept` are not changed.
  void load_states(
      const std::map<std::string, StateDict>& states,
      const std::set<std::string>& kept = {});
  /// Throws the errors that `load_states` would throw before it changes
  /// anything.
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
