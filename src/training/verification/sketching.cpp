// SPDX-License-Identifier: Apache-2.0
#include "training/verification/sketching.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/layout/piece_assembly.h"

namespace accelerate {
namespace {

using verify::Sketch;

// The sign of element i is columns[i % kColumns] * rows[i / kColumns % kRows].
// Both numbers are prime, so that the signs do not follow the shapes of
// tensors, which are mostly multiples of powers of two.
constexpr int64_t kColumns = 1021;
constexpr int64_t kRows = 509;
constexpr int64_t kNumSums = Sketch::kNumSums;

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

at::Tensor make_signs(int64_t size, uint64_t seed) {
  auto signs = at::empty({size, kNumSums}, at::kDouble);
  auto* out = signs.mutable_data_ptr<double>();
  for (int64_t i = 0; i < signs.numel(); ++i) {
    out[i] = (mixed(seed + static_cast<uint64_t>(i)) & 1) != 0 ? 1 : -1;
  }
  return signs;
}

struct Signs {
  at::Tensor columns;
  at::Tensor rows;
};

const Signs& signs_on(c10::Device device) {
  static thread_local std::map<std::pair<int, int>, Signs> known;
  auto& signs = known[{
      static_cast<int>(device.type()), static_cast<int>(device.index())}];
  if (!signs.columns.defined()) {
    signs.columns = make_signs(kColumns, 1).to(device);
    signs.rows = make_signs(kRows, 1'000'003).to(device);
  }
  return signs;
}

at::Tensor flat_reals(const at::Tensor& values) {
  auto flat = values.detach();
  if (flat.layout() != at::kStrided) {
    flat = flat.to_dense();
  }
  if (flat.is_complex()) {
    flat = at::view_as_real(flat.resolve_conj());
  }
  return flat.contiguous().flatten();
}

void add_run(const at::Tensor& values, int64_t begin, Sketch& sketch) {
  constexpr int64_t kChunk = int64_t{1} << 22;
  const Signs& signs = signs_on(values.device());
  at::Tensor total;
  for (int64_t done = 0; done < values.numel(); done += kChunk) {
    const int64_t count = std::min(kChunk, values.numel() - done);
    const int64_t first = (begin + done) % kColumns;
    const int64_t first_row = (begin + done) / kColumns;
    const int64_t num_rows = (first + count + kColumns - 1) / kColumns;
    auto table =
        at::zeros({num_rows * kColumns}, values.options().dtype(at::kDouble));
    auto part = table.narrow(0, first, count);
    part.copy_(values.narrow(0, done, count));
    const auto squares = part.dot(part);
    const auto row_index =
        at::arange(
            first_row, first_row + num_rows, table.options().dtype(at::kLong))
            .remainder_(kRows);
    const auto sums = (table.view({num_rows, kColumns}).mm(signs.columns) *
                       signs.rows.index_select(0, row_index))
                          .sum(0);
    const auto both = at::cat({squares.view({1}), sums});
    total = total.defined() ? total + both : both;
  }
  if (!total.defined()) {
    return;
  }
  total = total.cpu();
  const auto* numbers = total.const_data_ptr<double>();
  sketch.squares += numbers[0];
  for (size_t i = 0; i < Sketch::kNumSums; ++i) {
    sketch.sums[i] += numbers[1 + i];
  }
}

} // namespace

Sketch sketch_of(const at::Tensor& values, int64_t begin) {
  const at::NoGradGuard no_grad;
  Sketch sketch;
  add_run(flat_reals(values), begin, sketch);
  return sketch;
}

Sketch sketch_of(
    const at::Tensor& values,
    const std::vector<int64_t>& shape,
    const TensorPieces& pieces) {
  const at::NoGradGuard no_grad;
  Sketch sketch;
  const auto flat = flat_reals(values);
  for (const auto& run : PieceAssembly::runs_of(shape, pieces)) {
    add_run(flat.narrow(0, run.in_pieces, run.count), run.in_tensor, sketch);
  }
  return sketch;
}

} // namespace accelerate
