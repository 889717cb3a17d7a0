// SPDX-License-Identifier: Apache-2.0
// Streams of an accelerator beside those that compute, and their order.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

enum class StreamRole { kCopies, kCollectives, kRecording };

/// The process's stream for this role, always the same one: freed memory is
/// kept for the stream it was made on, and every new one would leave its share
/// behind.
ACCELERATE_API c10::Stream stream_for(StreamRole role, c10::Device device);

/// The stream on which collectives run beside the computation. Memory that
/// streams share is made on one of them, which is told to wait before it goes:
/// nothing is left to `record_stream`, whose memory comes back when the host
/// happens to look. Nothing on the CPU, where a call returns when it is done.
class ACCELERATE_API CommStream {
 public:
  explicit CommStream(c10::Device device);

  /// Makes it the calling thread's current stream while the guard lives.
  c10::OptionalStreamGuard enter() const;
  /// The calling thread's current stream; nothing on the CPU.
  std::optional<c10::Stream> current() const;
  /// What it is given from here on comes after what `other` was given so far.
  void follow(const std::optional<c10::Stream>& other) const;
  /// What `other` is given from here on comes after what it was given so far.
  void lead(const std::optional<c10::Stream>& other) const;
  /// The host waits for what it was given so far; no other call makes it wait.
  void synchronize() const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

/// Makes a stream of the process the current one while it lives, behind what
/// the one before was given so far, which goes on behind it. Memory of either
/// may be used on the other in between. Nothing on the CPU.
class ACCELERATE_API StreamScope {
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
