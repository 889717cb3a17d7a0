// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree.h"

#include <ATen/ops/stack.h>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate::tree {

void StructureWriter::tensor(at::Tensor& /*value*/) {
  text_ += "T,";
}

void StructureWriter::enter(std::string_view label, size_t size) {
  text_ += label;
  text_ += std::to_string(size);
  text_ += '(';
}

void StructureWriter::leave() {
  if (text_.back() == ',') {
    text_.pop_back();
  }
  text_ += "),";
}

std::vector<at::Tensor> stack_leaves(
    const std::vector<std::vector<at::Tensor>>& samples) {
  if (samples.empty()) {
    throw UsageError("[collate] got no samples, expected at least one");
  }
  const size_t num_leaves = samples.front().size();
  std::vector<at::Tensor> stacked;
  stacked.reserve(num_leaves);
  for (size_t leaf = 0; leaf < num_leaves; ++leaf) {
    std::vector<at::Tensor> column;
    column.reserve(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].size() != num_leaves ||
          samples[i][leaf].sizes() != samples[0][leaf].sizes()) {
        throw UsageError(str_cat(
            "[collate] sample ",
            i,
            " of the batch does not have the shape of "
            "sample 0 in tensor ",
            leaf,
            "; pad the samples or give the loader a collate function"));
      }
      column.push_back(samples[i][leaf]);
    }
    stacked.push_back(at::stack(column));
  }
  return stacked;
}

} // namespace accelerate::tree
