// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/slice_record.h"

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

using nlohmann::json;

json SliceRecord::to_json() const {
  json list = json::array();
  for (const auto& piece : pieces) {
    json entry = {{"begin", piece.begin}, {"count", piece.count}};
    if (piece.box.size != shape) { // the whole tensor needs no box
      entry["box_begin"] = piece.box.begin;
      entry["box_size"] = piece.box.size;
    }
    list.push_back(std::move(entry));
  }
  return {{kSliceRecord, {{"whole", shape}, {"pieces", std::move(list)}}}};
}

SliceRecord SliceRecord::parse(const json& value, std::int64_t num_values) {
  const auto& slice = value.at(kSliceRecord);
  SliceRecord record;
  slice.at("whole").get_to(record.shape);
  if (!slice.contains("pieces")) { // format 1
    record.pieces = flat_range(
        record.shape, slice.at("begin").get<std::int64_t>(), num_values);
  } else {
    for (const auto& entry : slice.at("pieces")) {
      TensorPiece piece;
      entry.at("begin").get_to(piece.begin);
      entry.at("count").get_to(piece.count);
      if (entry.contains("box_size")) {
        entry.at("box_begin").get_to(piece.box.begin);
        entry.at("box_size").get_to(piece.box.size);
      } else {
        piece.box = {
            std::vector<std::int64_t>(record.shape.size(), 0), record.shape};
      }
      record.pieces.push_back(std::move(piece));
    }
  }
  check_pieces(record.shape, record.pieces);
  if (num_elements(record.pieces) != num_values) {
    throw UsageError(str_cat(
        "The pieces have ",
        num_elements(record.pieces),
        " elements, but the file has ",
        num_values));
  }
  return record;
}

} // namespace accelerate
