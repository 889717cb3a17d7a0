// SPDX-License-Identifier: Apache-2.0
// Turns samples into batches.
//
// | a sample                          | becomes, in a batch of n samples      |
// |-----------------------------------|---------------------------------------|
// | tensor                            | tensor, new first dimension of n      |
// | bool, integer, float, double      | tensor of n: kBool, kLong, kFloat, ...|
// | vector or array of numbers        | tensor [n, length]                    |
// | string                            | vector of n strings                   |
// | pair, tuple, `torch` Example      | the same type of batches              |
// | map, other vector, optional       | the same type of batches; keys,       |
// |                                   | lengths and presence must agree       |
// | struct with `tensor_fields`       | see below                             |
//
// If the types of the listed fields do not change (tensors, and containers of
// tensors), a batch has the same struct type as its samples. Members that are
// not listed are copied from the first sample. If the type of a field changes
// (a number becomes a tensor), the batch is the struct's nested type `Batch`,
// which must list the same number of fields, or a tuple of the fields if there
// is no `Batch`:
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
// Messages and `PaddingOptions` identify fields by name: the key of a map, the
// position in a tuple or struct ("0", "1", ...), or the names that a struct
// defines:
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

/// How samples of different lengths become one batch.
struct ACCELERATE_API PaddingOptions {
  /// Pad the first dimension of tensors to the largest size in the batch,
  /// rounded up to a multiple of this number.
  int64_t multiple_of = 1;
  /// Pad to this length instead. A longer sample is an error.
  std::optional<int64_t> length = {};
  /// Pad at the front instead of the end.
  bool left = false;
  /// The padding value for each field name. Other fields are padded with 0.
  std::map<std::string, double> values = {{"labels", -100}};
  /// The fields to pad. If empty, all tensors with at least one dimension are
  /// padded.
  std::vector<std::string> fields = {};
  /// The name of a generated field that is 1 for real elements of `mask_of` and
  /// 0 for padding. It is generated if samples are maps of tensors without that
  /// key, or structs in which the field of that name is an undefined tensor.
  /// Existing masks are padded with 0.
  std::string mask = "attention_mask";
  std::string mask_of = "input_ids";
};

/// Stacks samples of equal shapes. This is the default of loaders. Throws a
/// `UsageError` if there are no samples or their shapes differ. The message
/// names the field, the positions in the batch and both shapes.
template <class T>
Collated<T> collate(const std::vector<T>& samples) {
  return detail::join_samples(samples, nullptr);
}

/// Collates samples whose tensors differ in their first dimension.
///
///     accelerate::DataLoader loader(
///         texts,
///         {.batch_size = 8},
///         accelerate::PaddingCollator(
///             {.multiple_of = 8,
///              .values = {{"input_ids", pad_id}, {"labels", -100}}}));
class ACCELERATE_API PaddingCollator {
 public:
  /// Throws `UsageError` if a length or multiple is below 1.
  explicit PaddingCollator(PaddingOptions options = {});

  template <class T>
  Collated<T> operator()(const std::vector<T>& samples) const {
    return detail::join_samples(samples, &options_);
  }

 private:
  PaddingOptions options_;
};

} // namespace accelerate
