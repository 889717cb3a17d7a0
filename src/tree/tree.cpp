// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree.h"

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

} // namespace accelerate::tree
