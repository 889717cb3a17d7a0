// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/collate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UsageError(str_cat(
      "[collate] ", path.empty() ? "" : str_cat("Field '", path, "': "), what));
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.requires_grad();
}

void check_kind(
    const std::vector<at::Tensor>& values,
    const std::string& path) {
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i].defined() != values[0].defined()) {
      fail(
          path,
          str_cat(
              "Sample ",
              values[i].defined() ? 0 : i,
              " has an undefined tensor, but sample ",
              values[i].defined() ? i : 0,
              " has a defined one. Define all or none"));
    }
    if (values[i].defined() &&
        (values[i].scalar_type() != values[0].scalar_type() ||
         values[i].device() != values[0].device())) {
      fail(
          path,
          str_cat(
              "Sample ",
              i,
              " is ",
              values[i].scalar_type(),
              " on ",
              values[i].device(),
              ", but sample 0 is ",
              values[0].scalar_type(),
              " on ",
              values[0].device()));
    }
  }
}

// Checks dimensions, starting at `first_dim`, because the first one may differ
// if it is padded.
void check_shapes(
    const std::vector<at::Tensor>& values,
    int64_t first_dim,
    const std::string& path) {
  const auto end_of = [&](const at::Tensor& tensor) {
    return tensor.sizes().slice(
        static_cast<size_t>(std::min(first_dim, tensor.dim())));
  };
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i].dim() == values[0].dim() &&
        end_of(values[i]) == end_of(values[0])) {
      continue;
    }
    const bool padding_helps =
        first_dim == 0 && values[0].dim() > 0 &&
        values[i].dim() == values[0].dim() &&
        values[i].sizes().slice(1) == values[0].sizes().slice(1);
    fail(
        path,
        str_cat(
            "Sample ",
            i,
            " has shape ",
            values[i].sizes(),
            ", but sample 0 has ",
            values[0].sizes(),
            first_dim == 0 ? "" : ". Only the first dimension may differ",
            padding_helps ? ". Pad them with PaddingCollator" : ""));
  }
}

at::Tensor stack(const std::vector<at::Tensor>& values) {
  if (!std::all_of(values.begin(), values.end(), is_plain)) {
    return at::stack(values);
  }
  auto sizes = values[0].sizes().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(values.size()));
  auto batch = at::empty(sizes, values[0].options());
  auto* to = static_cast<std::byte*>(batch.mutable_data_ptr());
  for (const auto& tensor : values) {
    std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    to += tensor.nbytes();
  }
  return batch;
}

int64_t padded_length(
    const std::vector<at::Tensor>& values,
    const PaddingOptions& padding,
    const std::string& path) {
  const auto longest = std::max_element(
      values.begin(), values.end(), [](const auto& a, const auto& b) {
        return a.size(0) < b.size(0);
      });
  if (!padding.length) {
    const int64_t multiple = padding.multiple_of;
    return (longest->size(0) + multiple - 1) / multiple * multiple;
  }
  if (longest->size(0) > *padding.length) {
    fail(
        path,
        str_cat(
            "Sample ",
            longest - values.begin(),
            " has length ",
            longest->size(0),
            ", but samples are padded to length ",
            *padding.length,
            ". Truncate the sample or raise the length"));
  }
  return *padding.length;
}

} // namespace

namespace detail {

at::Tensor LeafJoiner::join(
    const std::vector<at::Tensor>& values,
    const std::string& name,
    const std::string& path) {
  check_kind(values, path);
  if (!values[0].defined()) {
    return {};
  }
  const auto is_listed = [&](const std::vector<std::string>& names) {
    return names.empty() ||
           std::find(names.begin(), names.end(), name) != names.end();
  };
  if (padding_ == nullptr || values[0].dim() == 0 ||
      !is_listed(padding_->fields)) {
    check_shapes(values, 0, path);
    return stack(values);
  }
  check_shapes(values, 1, path);
  const int64_t length = padded_length(values, *padding_, path);
  if (name == padding_->mask_of) {
    make_mask(values, length);
  }
  auto sizes = values[0].sizes().vec();
  sizes[0] = length;
  sizes.insert(sizes.begin(), static_cast<int64_t>(values.size()));
  const auto value = padding_->values.find(name);
  auto batch = at::full(
      sizes,
      value == padding_->values.end() ? 0.0 : value->second,
      values[0].options().requires_grad(false));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t size = values[i].size(0);
    batch.select(0, static_cast<int64_t>(i))
        .narrow(0, padding_->left ? length - size : 0, size)
        .copy_(values[i]);
  }
  return batch;
}

void LeafJoiner::make_mask(
    const std::vector<at::Tensor>& values,
    int64_t length) {
  mask_ = at::zeros(
      {static_cast<int64_t>(values.size()), length},
      values[0].options().dtype(at::kLong).requires_grad(false));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t size = values[i].size(0);
    mask_.select(0, static_cast<int64_t>(i))
        .narrow(0, padding_->left ? length - size : 0, size)
        .fill_(1);
  }
}

at::Tensor LeafJoiner::join(const std::vector<bool>& values) {
  auto numbers = at::empty({static_cast<int64_t>(values.size())}, at::kBool);
  std::copy(values.begin(), values.end(), numbers.mutable_data_ptr<bool>());
  return numbers;
}

at::Tensor LeafJoiner::join(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

at::Tensor LeafJoiner::join(const std::vector<float>& values) {
  return at::tensor(values, at::kFloat);
}

at::Tensor LeafJoiner::join(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

at::Tensor LeafJoiner::mask(const std::string& name) const {
  return padding_ != nullptr && name == padding_->mask ? mask_ : at::Tensor();
}

std::string LeafJoiner::mask_name() const {
  return padding_ == nullptr ? std::string() : padding_->mask;
}

void throw_uneven(
    const std::string& path,
    size_t sample,
    const std::string& got,
    const std::string& expected) {
  fail(
      path,
      str_cat(
          "Sample ", sample, " has ", got, ", but sample 0 has ", expected));
}

void throw_too_large(uint64_t value) {
  throw UsageError(str_cat(
      "[collate] The integer ",
      value,
      " does not fit into int64. Use a smaller type"));
}

void check_samples(size_t num_samples) {
  if (num_samples == 0) {
    throw UsageError("[collate] The batch is empty. Pass at least one sample");
  }
}

std::string field_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : str_cat(path, ".", name);
}

} // namespace detail

PaddingCollator::PaddingCollator(PaddingOptions options)
    : options_(std::move(options)) {
  if (options_.multiple_of < 1 || options_.length.value_or(1) < 1) {
    throw UsageError(str_cat(
        "[PaddingCollator] multiple_of is ",
        options_.multiple_of,
        " and length is ",
        options_.length.value_or(1),
        ". Both must be at least 1"));
  }
}

} // namespace accelerate
