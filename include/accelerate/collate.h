// SPDX-License-Identifier: Apache-2.0
// Batches out of samples.
//
// | a sample                          | becomes, in a batch of n samples      |
// |-----------------------------------|---------------------------------------|
// | tensor                            | tensor, new first dimension of n      |
// | bool, whole number, float, double | tensor of n: kBool, kLong, kFloat, ...|
// | vector or array of numbers        | tensor [n, length]                    |
// | string                            | vector of n strings                   |
// | pair, tuple, `torch` Example      | the same of batches                   |
// | map, other vector, optional       | the same of batches; keys, lengths    |
// |                                   | and presence must agree               |
// | struct with `tensor_fields`       | see below                             |
//
// A struct becomes itself where its listed fields keep their type (tensors, and
// containers of tensors); what it does not list is the first sample's. Where a
// field changes its type (a number becomes a tensor), the batch is the type
// that the struct names `Batch`, listing as many fields, or else a tuple of the
// fields:
//
//     struct Review {
//       std::string text;
//       int64_t stars;
//       struct Batch {
//         std::vector<std::string> text;
//         torch::Tensor stars;
//       };
//     };
//     inline auto tensor_fields(Review& r) {
//       return std::tie(r.text, r.stars);
//     }
//     inline auto tensor_fields(Review::Batch& b) {
//       return std::tie(b.text, b.stars);
//     }
//
// Fields have a name in messages and in `PaddingOptions`: the key of a map, the
// position in a tuple or struct ("0", "1", ...), or what a struct says:
//
//     inline auto field_names(const Review&) {
//       return std::array{"text", "stars"};
//     }
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/detail/collate_join.h"
#include "accelerate/export.h"

namespace accelerate {

/// How samples of different length become one batch.
struct ACCELERATE_API PaddingOptions {
  /// The first dimension of tensors is padded to the longest of the batch,
  /// rounded up to a multiple of this.
  int64_t multiple_of = 1;
  /// Pad to this length instead. A longer sample is an error.
  std::optional<int64_t> length = {};
  /// Put the padding in front.
  bool left = false;
  /// What to pad with, by name of the field; everything else with 0.
  std::map<std::string, double> values = {{"labels", -100}};
  /// The fields to pad; where empty, all tensors of at least one dimension.
  std::vector<std::string> fields = {};
  /// 1 for every element of `mask_of` that is real, 0 for padding. Made where
  /// the samples are maps of tensors without that key, or structs whose field
  /// of that name is an undefined tensor; given masks are padded with 0.
  std::string mask = "attention_mask";
  std::string mask_of = "input_ids";
};

/// One batch of samples of equal shapes; what loaders do by themselves. Throws
/// `UsageError` where there is no sample, or where samples do not fit together:
/// it names the field, the positions in the batch and both shapes.
template <class T>
Collated<T> collate(const std::vector<T>& samples) {
  return detail::join_samples(samples, nullptr);
}

/// The same for samples whose tensors differ in their first dimension.
///
///     accelerate::DataLoader loader(
///         texts,
///         {.batch_size = 8},
///         accelerate::PaddingCollator(
///             {.multiple_of = 8,
///              .values = {{"input_ids", pad_id}, {"labels", -100}}}));
class ACCELERATE_API PaddingCollator {
 public:
  /// Throws `UsageError` where a length or multiple is below 1.
  explicit PaddingCollator(PaddingOptions options = {});

  template <class T>
  Collated<T> operator()(const std::vector<T>& samples) const {
    return detail::join_samples(samples, &options_);
  }

 private:
  PaddingOptions options_;
};

} // namespace accelerate
