// SPDX-License-Identifier: Apache-2.0
// Do all ranks bring values that fit one collective?
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/collectives.h"
#include "accelerate/process_group.h"

namespace accelerate {

/// Everybody's shapes, as far as they may differ, and values, as far as they
/// came along.
struct Agreement {
  /// `free_sizes[rank][tensor]`: the size of the free dimension.
  std::vector<std::vector<int64_t>> free_sizes;
  /// `values[tensor][rank]`, in host memory; see `Sends`.
  std::optional<std::vector<std::vector<at::Tensor>>> values;
};

/// Which dimension of a tensor may differ between ranks, and is told to all; in
/// tensors without it all may.
struct FreeDim {
  static constexpr int64_t kNone = -1;
  int64_t dim = kNone;
  /// So may the others. Not together with `Sends::kSmallValues`.
  bool are_others_free = false;
};

enum class Sends {
  kShapes,
  /// Values too, where those of every rank are a few hundred bytes that hosts
  /// would wait for anyway: then no second exchange is needed.
  kSmallValues,
};

/// Compares operation, structure, dtypes, number of dimensions, all sizes but
/// the free dimension's, and where values travel across ranks. If they differ,
/// throws `MismatchError` on every rank, which says what each of them called,
/// with which shapes, and in which line. A collective operation itself.
Agreement agree(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free,
    Sends sends = Sends::kShapes);

/// As above for a plain description: equal on all ranks or `MismatchError`. One
/// of several lines is a list; only the first line that differs is named.
ACCELERATE_API void agree_on_text(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description);

/// Whether `flag` is true on any rank. Throws `MismatchError` where ranks come
/// with another operation.
bool is_on_any_rank(
    const ProcessGroup& group,
    const std::string& operation,
    bool flag);

/// Compares `operation` across ranks as `agree` does, beside what else goes on:
/// the next operation of the group, or `settle`, waits for it and throws
/// `MismatchError`. Nothing in groups where hosts could not meet without
/// waiting for a device. What is given back becomes true when all ranks have
/// said the same, and is true where they do not compare: others may make the
/// operation then, whatever becomes of this rank's own reason to. A `note`
/// travels along: `hear` gets those of all ranks when they have agreed.
using HearNotes = std::function<void(std::span<const int64_t> notes)>;
ACCELERATE_API std::shared_ptr<const bool> announce(
    const ProcessGroup& group,
    const std::string& operation,
    int64_t note = 0,
    HearNotes hear = {});
ACCELERATE_API void settle(const ProcessGroup& group);

/// What ranks would tell each other in a step that is recorded: each replay
/// tells it, so that ranks which replay a step and ranks which run it agree.
/// While it lives, an operation without values is only noted, and a comparison
/// of values, which a replay could not repeat, is a `UsageError`.
class ACCELERATE_API DeferredMeetings {
 public:
  explicit DeferredMeetings(const ProcessGroup& group);
  ~DeferredMeetings();
  DeferredMeetings(const DeferredMeetings&) = delete;
  DeferredMeetings& operator=(const DeferredMeetings&) = delete;

  std::vector<std::string> take() { return std::move(operations_); }

 private:
  std::shared_ptr<ProcessGroup::Impl> impl_;
  std::vector<std::string> operations_;
};
ACCELERATE_API void hold_meetings(
    const ProcessGroup& group,
    const std::vector<std::string>& operations);

} // namespace accelerate
