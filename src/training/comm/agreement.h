// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks pass matching values to a collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/collectives.h"
#include "accelerate/distributed/process_group.h"
#include "core/base/internal.h"

namespace accelerate {

/// The free sizes of all ranks, and their values if these were sent along.
struct ComparisonResult {
  /// `free_sizes[rank][tensor]`: the size of the free dimension.
  std::vector<std::vector<int64_t>> free_sizes;
  /// `values[tensor][rank]`, in host memory. Empty if they were not sent. See
  /// `Payload`.
  std::optional<std::vector<std::vector<at::Tensor>>> values;
};

/// The dimension of a tensor that may differ between ranks and is exchanged. If
/// a tensor has no such dimension, all its dimensions may differ.
struct FreeDim {
  static constexpr int64_t kNone = -1;
  int64_t dim = kNone;
  /// Other dimensions may also differ. Cannot be combined with
  /// `Payload::kSmallValues`.
  bool are_others_free = false;
};

enum class Payload {
  kShapes,
  /// Also sends values if those of every rank are at most a few hundred bytes
  /// and hosts would wait for them anyway. This saves the second exchange.
  kSmallValues,
};

/// Compares a collective across ranks: operation, structure, dtypes, number of
/// dimensions, all sizes except the free dimension's, and the transport of
/// values. If ranks differ, throws `MismatchError` on every rank. The message
/// lists what each rank called, with which shapes, and on which line. This
/// function is itself a collective.
ComparisonResult agree(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free,
    Payload payload = Payload::kShapes);

/// Like `agree`, but for a plain description. Throws `MismatchError` unless it
/// is equal on all ranks. Several lines form a list. The error names only the
/// first line that differs.
ACCELERATE_INTERNAL void agree_on_text(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description);

/// Whether `flag` is true on any rank. Throws `MismatchError` if ranks call
/// different operations.
bool is_on_any_rank(
    const ProcessGroup& group,
    const std::string& operation,
    bool flag);

/// Compares `operation` across ranks like `agree`, but in the background: the
/// next operation of the group, or `finish_comparison`, waits for it and throws
/// `MismatchError`. Does nothing in groups whose hosts cannot communicate
/// without waiting for a device. The returned flag becomes true when all ranks
/// have sent the same operation, and is true if nothing is compared. Other
/// ranks may then perform the operation even if this rank no longer needs it.
///
/// Up to `kMostNotes` numbers are sent with it. `on_notes` receives those of
/// each rank when the ranks have agreed, and may throw the error of the waiting
/// operation. A rank that replays a recorded step sends zeros.
inline constexpr size_t kMostNotes = 48;
using Notes = std::vector<int64_t>;
/// The notes of all ranks, without a copy: `kMostNotes` numbers per rank.
class NotesOfRanks {
 public:
  /// The notes of rank r begin at `first + r * stride`.
  NotesOfRanks(const int64_t* first, size_t num_ranks, size_t stride)
      : first_(first), num_ranks_(num_ranks), stride_(stride) {}

  size_t size() const { return num_ranks_; }
  const int64_t* operator[](size_t rank) const {
    return first_ + rank * stride_;
  }

 private:
  const int64_t* first_;
  size_t num_ranks_;
  size_t stride_;
};
using OnNotes = std::function<void(const NotesOfRanks& of_ranks)>;
ACCELERATE_INTERNAL std::shared_ptr<const bool> announce(
    const ProcessGroup& group,
    const std::string& operation,
    const Notes& notes = {},
    OnNotes on_notes = {});
ACCELERATE_INTERNAL void finish_comparison(const ProcessGroup& group);

/// The comparisons that ranks would make in a recorded step. Each replay makes
/// them, so that ranks that replay a step match ranks that run it. During its
/// lifetime, a comparison without values is only recorded. A comparison of
/// values cannot be repeated by a replay, so it is a `UsageError`.
class ACCELERATE_INTERNAL DeferredComparisons {
 public:
  explicit DeferredComparisons(const ProcessGroup& group);
  ~DeferredComparisons();
  DeferredComparisons(const DeferredComparisons&) = delete;
  DeferredComparisons& operator=(const DeferredComparisons&) = delete;

  std::vector<std::string> take() { return std::move(operations_); }

 private:
  std::shared_ptr<ProcessGroup::Impl> impl_;
  std::vector<std::string> operations_;
};
ACCELERATE_INTERNAL void repeat_comparisons(
    const ProcessGroup& group,
    const std::vector<std::string>& operations);

} // namespace accelerate
