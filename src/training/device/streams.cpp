// SPDX-License-Identifier: Apache-2.0
#include "training/device/streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <tuple>

namespace accelerate {
namespace {

void put_behind(const c10::Stream& later, const c10::Stream& earlier) {
  if (later == earlier) {
    return;
  }
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

} // namespace

c10::Stream stream_for(StreamRole role, c10::Device device) {
  using Key = std::tuple<StreamRole, c10::DeviceType, c10::DeviceIndex>;
  static std::mutex mutex;
  static std::map<Key, c10::Stream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  const Key key(role, device.type(), device.index());
  auto found = streams.find(key);
  if (found == streams.end()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    found = streams.emplace(key, guard.getStreamFromGlobalPool(device)).first;
  }
  return found->second;
}

CommStream::CommStream(c10::Device device) : device_(device) {
  if (!device.is_cpu()) {
    stream_ = stream_for(StreamRole::kCollectives, device);
  }
}

c10::OptionalStreamGuard CommStream::enter() const {
  return c10::OptionalStreamGuard(stream_);
}

std::optional<c10::Stream> CommStream::current() const {
  if (!stream_) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void CommStream::synchronize() const {
  if (stream_) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeStream(*stream_);
  }
}

void CommStream::follow(const std::optional<c10::Stream>& other) const {
  if (stream_ && other) {
    put_behind(*stream_, *other);
  }
}

void CommStream::lead(const std::optional<c10::Stream>& other) const {
  if (stream_ && other) {
    put_behind(*other, *stream_);
  }
}

StreamScope::StreamScope(StreamRole role, c10::Device device) {
  if (device.is_cpu()) {
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  stream_ = stream_for(role, device);
  before_ = guard.getStream(device);
  put_behind(*stream_, *before_);
  guard.exchangeStream(*stream_);
}

StreamScope::~StreamScope() {
  if (stream_) {
    put_behind(*before_, *stream_);
    c10::impl::VirtualGuardImpl(stream_->device_type())
        .exchangeStream(*before_);
  }
}

} // namespace accelerate
