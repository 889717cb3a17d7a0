// SPDX-License-Identifier: Apache-2.0
#include "core/layout/piece_assembly.h"

#include <algorithm>

namespace accelerate {

std::vector<PieceAssembly::Run> PieceAssembly::runs_of(
    const std::vector<std::int64_t>& shape,
    const TensorPieces& pieces) {
  std::vector<Run> runs;
  std::int64_t in_pieces = 0;
  const auto add = [&](std::int64_t in_tensor, std::int64_t count) {
    if (!runs.empty() &&
        runs.back().in_tensor + runs.back().count == in_tensor) {
      runs.back().count += count;
    } else {
      runs.push_back({in_tensor, in_pieces, count});
    }
    in_pieces += count;
  };
  for (const auto& [box, begin, count] : pieces) {
    // From dimension `cut` on, elements are contiguous in both box and tensor.
    std::size_t cut = shape.size();
    std::int64_t length = 1; // Of a run.
    std::int64_t stride = 1; // In the tensor, of the dimension before `cut`.
    std::int64_t offset = 0; // Of the box in its run.
    while (cut > 0) {
      --cut;
      length *= box.size[cut];
      offset += box.begin[cut] * stride;
      stride *= shape[cut];
      if (box.size[cut] != shape[cut]) {
        break;
      }
    }
    for (std::int64_t at = begin; at < begin + count;) {
      std::int64_t row = at / length;
      const std::int64_t in_row = at % length;
      std::int64_t in_tensor = offset + in_row;
      std::int64_t step = stride;
      for (std::size_t i = cut; i-- > 0;) {
        in_tensor += (box.begin[i] + row % box.size[i]) * step;
        row /= box.size[i];
        step *= shape[i];
      }
      const auto num = std::min(length - in_row, begin + count - at);
      add(in_tensor, num);
      at += num;
    }
  }
  const auto is_before = [](const Run& one, const Run& other) {
    return one.in_tensor < other.in_tensor;
  };
  if (!std::is_sorted(runs.begin(), runs.end(), is_before)) {
    std::sort(runs.begin(), runs.end(), is_before);
  }
  return runs;
}

PieceAssembly::PieceAssembly(
    const std::vector<std::int64_t>& shape,
    const TensorPieces& target)
    : shape_(shape), missing_(runs_of(shape, target)) {}

void PieceAssembly::add(const TensorPieces& source, const Copy& copy) {
  if (missing_.empty()) {
    return;
  }
  const auto runs = runs_of(shape_, source);
  const auto end_of = [](const Run& run) { return run.in_tensor + run.count; };
  std::vector<Run> rest;
  std::size_t first = 0; // Runs before it end before what is missing.
  for (Run open : missing_) {
    while (first < runs.size() && end_of(runs[first]) <= open.in_tensor) {
      ++first;
    }
    for (std::size_t i = first;
         i < runs.size() && open.count > 0 && runs[i].in_tensor < end_of(open);
         ++i) {
      const auto begin = std::max(open.in_tensor, runs[i].in_tensor);
      const auto end = std::min(end_of(open), end_of(runs[i]));
      if (begin >= end) {
        continue;
      }
      const auto before = begin - open.in_tensor;
      if (before > 0) {
        rest.push_back({open.in_tensor, open.in_pieces, before});
      }
      copy(
          open.in_pieces + before,
          runs[i].in_pieces + (begin - runs[i].in_tensor),
          end - begin);
      const auto done = end - open.in_tensor;
      open = {end, open.in_pieces + done, open.count - done};
    }
    if (open.count > 0) {
      rest.push_back(open);
    }
  }
  missing_ = std::move(rest);
}

std::int64_t PieceAssembly::num_missing() const {
  std::int64_t sum = 0;
  for (const auto& run : missing_) {
    sum += run.count;
  }
  return sum;
}

} // namespace accelerate
