// SPDX-License-Identifier: Apache-2.0
// TensorBoard's files: records with their length and checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/internal.h"
#include "core/tracking/append_file.h"
#include "core/tracking/protobuf.h"

namespace accelerate {

/// `data` as a record of TensorFlow's TFRecord format.
ACCELERATE_INTERNAL std::string record_of(std::string_view data);

/// A new file in `folder`, with a unique name that TensorBoard recognises.
/// Throws `SystemError`.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder);
  /// `event` has everything but its time.
  void write(ProtoMessage event);

 private:
  AppendFile file_;
};

/// Fields of TensorBoard's `Event`.
namespace event_field {
constexpr int kTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
} // namespace event_field

} // namespace accelerate
