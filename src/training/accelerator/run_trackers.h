// SPDX-License-Identifier: Apache-2.0
// The trackers of a run, as a part of its state.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/observe/tracking.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

class RunTrackers : public Stateful {
 public:
  explicit RunTrackers(Trackers trackers) : trackers_(std::move(trackers)) {}
  Trackers& trackers() { return trackers_; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  Trackers trackers_;
};

/// Throws `UsageError` unless `images` is an image or a batch of them: uint8,
/// or floating point from 0 to 1, of shape [N x] C x H x W with one or three
/// channels.
void check_images(const std::string& name, const at::Tensor& images);
/// Throws `UsageError` unless the values are real numbers.
void check_histogram(const std::string& name, const at::Tensor& values);

/// Converts images that `check_images` has accepted.
std::vector<TrackedImage> images_of(const at::Tensor& images);

} // namespace accelerate
