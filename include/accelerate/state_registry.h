// SPDX-License-Identifier: Apache-2.0
// Everything that a run is made of, each part under a name.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/stateful.h"

namespace accelerate {

/// Whose state it is.
enum class StateScope {
  /// The same on every rank: weights, schedules, positions.
  kCommon,
  /// Each rank has its own: generators, gradients of a window that is not full.
  kPerRank,
};

/// The state of a whole run. `prepare` puts models, optimizers, schedulers and
/// loaders in; the run itself its scaler, generators and accumulation; users
/// their own objects. Objects belong to whoever made them: one that is gone has
/// left the registry. Used by one thread.
///
///     auto counter = std::make_shared<Counter>();
///     accelerator.state().add("counter", counter);
///     const auto saved = accelerator.state().state_dict();
///     saved.part("optimizer").get<double>("groups.0.lr");
class ACCELERATE_API StateRegistry {
 public:
  StateRegistry();
  ~StateRegistry();
  StateRegistry(const StateRegistry&) = delete;
  StateRegistry& operator=(const StateRegistry&) = delete;

  /// Puts the object in under `kind`, or where a living object has that name
  /// under `kind_1`, `kind_2` and so on: give objects in the same order in
  /// every run. Returns the name; of an object that is in already, the one it
  /// has. Throws `UsageError` on an empty object or a name that is empty or has
  /// dots.
  std::string add(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object,
      StateScope scope = StateScope::kCommon);
  /// Puts in an object that checkpoints may lack, and that a run may lack when
  /// it loads one: `load_state` warns then. Nothing if the object is in; if it
  /// is given to `add` later, it becomes an ordinary one. Returns its name,
  /// which moves on if `add` needs it.
  std::string add_optional(
      const std::string& kind,
      const std::shared_ptr<Stateful>& object);
  /// Whether a living object of that name was put in by `add_optional`.
  bool is_optional(const std::string& name) const;
  /// The living objects by name, in the order in which they came; optional ones
  /// at the end.
  std::vector<std::pair<std::string, std::shared_ptr<Stateful>>> objects()
      const;
  /// Empty where the object is not in.
  std::string name_of(const Stateful& object) const;
  /// Of a living object of that name; common where there is none.
  StateScope scope_of(const std::string& name) const;

  /// Everybody's state, each after the object's name and a dot.
  StateDict state_dict() const;
  /// Loads each object's part. Throws `UsageError` naming all objects whose
  /// part is missing and all parts without an object, before anything is
  /// loaded.
  void load_state_dict(const StateDict& state);
  /// The same from the parts by name. Objects named in `kept` stay as they are.
  void load_parts(
      const std::map<std::string, StateDict>& parts,
      const std::set<std::string>& kept = {});
  /// Throws what `load_parts` throws before it changes anything.
  void check_parts(
      const std::map<std::string, StateDict>& parts,
      const std::set<std::string>& kept = {}) const;
  /// The rest of `load_parts`, for parts that `check_parts` has accepted.
  void put_parts(
      const std::map<std::string, StateDict>& parts,
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
