// SPDX-License-Identifier: Apache-2.0
#include "training/accelerator/run_trackers.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

namespace accelerate {
namespace {

constexpr const char* kNextStep = "next_step";
constexpr const char* kTrackerStates = "places";

std::string named(const at::Tensor& tensor) {
  return tensor.defined()
             ? str_cat(tensor.toString(), " of shape ", tensor.sizes())
             : "an undefined tensor";
}

} // namespace

StateDict RunTrackers::state_dict() const {
  const auto state = trackers_.state();
  StateDict states;
  for (const auto& [name, own] : state.trackers) {
    if (!own.empty()) {
      states.set(name, own);
    }
  }
  StateDict saved;
  saved.set(kNextStep, state.next_step);
  saved.set(kTrackerStates, states);
  return saved;
}

void RunTrackers::load_state_dict(const StateDict& saved) {
  Trackers::State state = {.next_step = saved.get<int64_t>(kNextStep)};
  for (const auto& [name, own] : saved.section(kTrackerStates)) {
    if (const auto* text = std::get_if<std::string>(&own)) {
      state.trackers[name] = *text;
    }
  }
  trackers_.load_state(state);
}

void check_images(const std::string& name, const at::Tensor& images) {
  const int64_t dim = images.defined() ? images.dim() : 0;
  const int64_t num_channels = dim == 3 || dim == 4 ? images.size(-3) : 0;
  if ((num_channels != 1 && num_channels != 3) ||
      (!images.is_floating_point() && images.scalar_type() != at::kByte)) {
    throw UsageError(str_cat(
        "[log_images] '",
        printable(name),
        "' is ",
        named(images),
        ". Pass uint8 values, or floats from 0 to 1, in a tensor of shape [N, "
        "C, H, W] with one or three channels"));
  }
}

void check_histogram(const std::string& name, const at::Tensor& values) {
  if (!values.defined() || values.is_complex() ||
      values.layout() != at::kStrided) {
    throw UsageError(str_cat(
        "[log_histogram] '",
        printable(name),
        "' is ",
        named(values),
        ". Pass a dense tensor of real values, for example the result of abs() "
        "or to_dense()"));
  }
}

std::vector<TrackedImage> images_of(const at::Tensor& images) {
  const auto batch = images.dim() == 3 ? images.unsqueeze(0) : images;
  const at::NoGradGuard no_grad;
  auto pixels = batch.to(at::kCPU);
  if (images.is_floating_point()) {
    pixels = pixels.to(at::kFloat).clamp(0, 1).mul(255).round().to(at::kByte);
  }
  pixels = pixels.expand({-1, 3, -1, -1}).permute({0, 2, 3, 1}).contiguous();
  std::vector<TrackedImage> found;
  for (const auto& image : pixels.unbind()) {
    found.push_back(
        {.width = static_cast<int>(image.size(1)),
         .height = static_cast<int>(image.size(0)),
         .png = encode_png(image)});
  }
  return found;
}

} // namespace accelerate
