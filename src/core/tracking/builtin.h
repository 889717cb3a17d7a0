// SPDX-License-Identifier: Apache-2.0
// The built-in trackers: one file each, and one row in trackers.cpp.
#pragma once

#include <memory>

#include "accelerate/observe/tracking.h"

namespace accelerate {

std::shared_ptr<Tracker> make_json_lines_tracker(const TrackingOptions&);
std::shared_ptr<Tracker> make_csv_tracker(const TrackingOptions&);
std::shared_ptr<Tracker> make_tensorboard_tracker(const TrackingOptions&);
/// Throws `UsageError` if the library was built without an HTTP client, or no
/// server is configured.
std::shared_ptr<Tracker> make_mlflow_tracker(const TrackingOptions&);

} // namespace accelerate
