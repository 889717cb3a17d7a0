// SPDX-License-Identifier: Apache-2.0
// Streams of an accelerator besides the compute stream, and their order.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

enum class StreamRole { kCopies, kCollectives, kRecording };

/// The process's stream for this role, always the same one. Freed memory is
/// cached per stream, so every additional stream would waste cached memory.
ACCELERATE_INTERNAL c10::Stream stream_for(StreamRole role, c10::Device device);

/// The stream on which collectives overlap with computation. Memory that is
/// shared between streams is allocated on one of them, and this stream waits
/// before the memory is released. `record_stream` is not used, because it
/// releases memory whenever the host happens to check. No effect on the CPU,
/// where calls are synchronous.
class CommStream {
 public:
  explicit CommStream(c10::Device device);

  /// Makes this stream the calling thread's current stream during the guard's
  /// lifetime.
  c10::OptionalStreamGuard enter() const;
  /// The calling thread's current stream. Empty on the CPU.
  std::optional<c10::Stream> current() const;
  /// Later work of this stream waits for the work queued on `other` so far.
  void follow(const std::optional<c10::Stream>& other) const;
  /// Later work of `other` waits for the work queued on this stream so far.
  void lead(const std::optional<c10::Stream>& other) const;
  /// Makes the host wait for the work queued so far. No other function makes
  /// the host wait.
  void synchronize() const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

/// During the lifetime of this object, a stream of the process is the current
/// stream. Its work starts after the queued work of the previous stream, and
/// the previous stream waits for it at the end. In the meantime, memory of
/// either stream may therefore be used on the other. No effect on the CPU.
class StreamScope {
 public:
  StreamScope(StreamRole role, c10::Device device);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> before_;
};

} // namespace accelerate
