// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/outbox.h"

#include <sys/socket.h>

namespace accelerate {
namespace {

// A peer that leaves more than this unread is not sent anything more.
constexpr size_t kMaxUnsent = 1 << 20;
// A launcher that is stuck for this long will not recover: stop its alive
// messages.
constexpr std::chrono::minutes kMaxStall{10};

} // namespace

void Outbox::send(const Message& message) {
  const std::lock_guard lock(mutex_);
  if (socket_ < 0 || unsent_.size() > kMaxUnsent) {
    return;
  }
  const std::string payload = encode_payload(message);
  unsent_ += frame_of(seal_ ? seal_->close(payload) : payload);
  flush_locked();
}

void Outbox::seal(FrameSeal seal) {
  const std::lock_guard lock(mutex_);
  seal_ = std::move(seal);
}

bool Outbox::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
  return !unsent_.empty();
}

void Outbox::turn() {
  const std::lock_guard lock(mutex_);
  last_turn_ = std::chrono::steady_clock::now();
}

void Outbox::beat() {
  const std::lock_guard lock(mutex_);
  const auto stall = std::chrono::steady_clock::now() - last_turn_;
  if (socket_ < 0 || !seal_ || stall > kMaxStall) {
    return;
  }
  if (unsent_.empty()) {
    unsent_ = frame_of(seal_->close(encode_payload(AliveMessage{})));
  }
  flush_locked();
}

void Outbox::close() {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
}

void Outbox::flush_locked() {
  if (socket_ < 0 || unsent_.empty()) {
    return;
  }
  const auto size = ::send(
      socket_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // If sending fails, the reading side detects the broken connection.
  if (size > 0) {
    unsent_.erase(0, static_cast<size_t>(size));
  }
}

} // namespace accelerate
