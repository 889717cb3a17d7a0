// SPDX-License-Identifier: Apache-2.0
#include "core/verify/rank_agreement.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/str.h"
#include "core/verify/tensor_lists.h"

namespace accelerate::verify {
namespace {

/// A list of tensors in a record.
using List = Tensors UpdateRecord::*;

std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += str_cat(
        i == 0                  ? ""
        : i + 1 == ranks.size() ? " and "
                                : ", ",
        ranks[i]);
  }
  return text;
}

/// A tensor that should be equal on all ranks, and the ranks where it differs
/// from rank 0's.
struct OddTensor {
  const TensorRecord* tensor = nullptr;
  std::vector<int> ranks = {};
};

std::optional<OddTensor> find_odd(
    const std::vector<ProcessRecord>& run,
    size_t update,
    List list,
    bool only_frozen = false) {
  for (const auto& tensor : run[0].updates[update].*list) {
    if (tensor.is_divided || (only_frozen && tensor.is_trained)) {
      continue;
    }
    OddTensor odd{.tensor = &tensor};
    for (size_t rank = 1; rank < run.size(); ++rank) {
      const auto* other = find(run[rank].updates[update].*list, tensor.name);
      // The same kernel on the same values gives the same sums. NaN differs
      // from itself, so it is compared as text.
      const auto is_same = [](double a, double b) {
        return a == b || (std::isnan(a) && std::isnan(b));
      };
      bool is_equal = other != nullptr &&
                      is_same(other->sketch.squares, tensor.sketch.squares);
      for (size_t i = 0; is_equal && i < Sketch::kNumSums; ++i) {
        is_equal = is_same(other->sketch.sums[i], tensor.sketch.sums[i]);
      }
      if (!is_equal) {
        odd.ranks.push_back(static_cast<int>(rank));
      }
    }
    if (!odd.ranks.empty()) {
      return odd;
    }
  }
  return std::nullopt;
}

size_t num_common_updates(const std::vector<ProcessRecord>& run) {
  size_t count = run[0].updates.size();
  for (const auto& process : run) {
    count = std::min(count, process.updates.size());
  }
  return count;
}

std::vector<std::string> odd_tensors(const std::vector<ProcessRecord>& run) {
  std::vector<std::string> problems;
  const auto describe = [](const OddTensor& odd) {
    return str_cat(
        "'",
        odd.tensor->name,
        "' on ",
        listed(odd.ranks),
        " differs from rank 0's");
  };
  for (size_t i = 0; i < num_common_updates(run); ++i) {
    const auto frozen =
        find_odd(run, i, &UpdateRecord::parameters, /*only_frozen=*/true);
    if (frozen) {
      problems.push_back(str_cat(
          "Step ",
          i + 1,
          ": the frozen parameter ",
          describe(*frozen),
          ". Change frozen parameters before prepare(), which copies rank 0's "
          "values to all ranks, or in the same way on all ranks"));
    }
    const auto buffer = find_odd(run, i, &UpdateRecord::buffers);
    if (buffer) {
      problems.push_back(str_cat(
          "Step ",
          i + 1,
          ": the buffer ",
          describe(*buffer),
          " when the forward pass begins. Leave broadcast_buffers on, "
          "and reduce the values from which the buffer is computed over all "
          "ranks"));
    }
    const auto gradient = find_odd(run, i, &UpdateRecord::gradients);
    if (gradient) {
      problems.push_back(str_cat(
          "Step ",
          i + 1,
          ": the gradient of ",
          describe(*gradient),
          " when the optimizer steps. It was not synchronised, or was changed "
          "on one rank after backward(). Change gradients in the same way on "
          "all ranks"));
    }
    const auto parameter = gradient || frozen
                               ? std::nullopt
                               : find_odd(run, i, &UpdateRecord::parameters);
    if (parameter) {
      problems.push_back(str_cat(
          "Step ",
          i + 1,
          ": after the step, ",
          describe(*parameter),
          ". The ranks use different learning rates, or changed the weights "
          "on their own. Use the same rates and the same changes on all "
          "ranks"));
    }
    if (!problems.empty()) {
      break; // Later steps differ for the same reason.
    }
  }
  return problems;
}

std::optional<std::string> odd_orders(const std::vector<ProcessRecord>& run) {
  for (size_t rank = 1; rank < run.size(); ++rank) {
    const size_t count =
        std::min(run[0].orders.size(), run[rank].orders.size());
    for (size_t i = 0; i < count; ++i) {
      if (run[rank].orders[i] != run[0].orders[i]) {
        return str_cat(
            "The samplers of ranks 0 and ",
            rank,
            " return different samples, but prepare() expects the same order "
            "on every rank and divides it. Pass a sampler that is not sharded "
            "and does not depend on the rank");
      }
    }
  }
  return std::nullopt;
}

} // namespace

std::vector<std::string> unique_texts(
    const std::vector<ProcessRecord>& run,
    const std::function<std::vector<std::string>(const ProcessRecord&)>& of) {
  std::vector<std::string> texts;
  for (const auto& process : run) {
    for (const auto& text : of(process)) {
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) {
        texts.push_back(text);
      }
    }
  }
  return texts;
}

Verdict check_ranks(const std::vector<ProcessRecord>& run) {
  auto lines =
      unique_texts(run, [](const auto& process) { return process.problems; });
  if (const auto odd = odd_orders(run)) {
    lines.push_back(*odd);
  }
  for (auto& line : odd_tensors(run)) {
    lines.push_back(std::move(line));
  }
  return {
      .outcome = lines.empty() ? Outcome::kAgrees : Outcome::kDisagrees,
      .lines = std::move(lines)};
}

std::string difference_on_same_batch(const std::vector<ProcessRecord>& run) {
  for (size_t rank = 1; rank < run.size(); ++rank) {
    if (run[0].updates.empty() || run[rank].updates.empty() ||
        run[0].updates[0].batches.empty() ||
        run[rank].updates[0].batches.empty() ||
        run[0].updates[0].batches[0].loss ==
            run[rank].updates[0].batches[0].loss) {
      continue;
    }
    const size_t num_outputs =
        std::min(run[0].outputs.size(), run[rank].outputs.size());
    std::string where = "the model or the loss";
    for (size_t i = 0; i < num_outputs; ++i) {
      if (run[0].outputs[i] != run[rank].outputs[i]) {
        const auto& name = run[0].outputs[i].name;
        where = name.empty() ? "the model" : str_cat("the module '", name, "'");
        break;
      }
    }
    return str_cat(
        where,
        " computes different values from the same batch on rank ",
        rank,
        " than on rank 0. It uses values that depend on the rank, such as a "
        "generator seeded with the rank, or weights that are not synchronised");
  }
  return {};
}

} // namespace accelerate::verify
