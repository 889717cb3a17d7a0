// SPDX-License-Identifier: Apache-2.0
#include "core/verify/step_difference.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/str.h"

namespace accelerate::verify {
namespace {

/// What each rank's first batch counts: labels, elements that are not masked,
/// or samples.
struct Counts {
  std::vector<std::int64_t> of_ranks;
  const char* what = "";

  std::string text() const {
    std::string text;
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      text += str_cat(rank == 0 ? "" : ", ", of_ranks[rank], " on rank ", rank);
    }
    return str_cat(what, ": ", text);
  }
};

std::vector<Counts> possible_counts(
    const std::vector<const UpdateRecord*>& updates) {
  std::vector<Counts> all;
  std::vector<const MicroBatchRecord*> batches;
  for (const auto* update : updates) {
    if (update->batches.empty()) {
      return all;
    }
    batches.push_back(&update->batches[0]);
  }
  const auto add = [&](const char* what, const auto& count_of) {
    Counts counts{.of_ranks = {}, .what = what};
    for (const auto* batch : batches) {
      counts.of_ranks.push_back(count_of(*batch));
    }
    all.push_back(std::move(counts));
  };
  size_t num_leaves = batches[0]->leaves.size();
  for (const auto* batch : batches) {
    num_leaves = std::min(num_leaves, batch->leaves.size());
  }
  for (size_t leaf = 0; leaf < num_leaves; ++leaf) {
    const auto valid = [&](const MicroBatchRecord& batch) {
      return batch.leaves[leaf].num_valid;
    };
    const bool has_labels =
        std::any_of(batches.begin(), batches.end(), [&](const auto* batch) {
          return batch->leaves[leaf].has_ignored;
        });
    const bool is_mask =
        std::all_of(batches.begin(), batches.end(), [&](const auto* batch) {
          return batch->leaves[leaf].is_mask;
        });
    if (has_labels || is_mask) {
      const char* what = has_labels ? "labels" : "elements that are not masked";
      add(what, valid);
      // Causal models do not predict the first token of a sequence.
      add(what, [&](const MicroBatchRecord& batch) {
        return valid(batch) - batch.num_samples;
      });
    }
  }
  for (size_t leaf = 0; leaf < num_leaves; ++leaf) {
    // Padding is often 0.
    add("elements that are not 0", [&](const MicroBatchRecord& batch) {
      return batch.leaves[leaf].num_nonzero;
    });
  }
  add("samples", [](const auto& batch) { return batch.num_samples; });
  return all;
}

/// The counts that turn the ranks' losses into that of one process; empty if
/// there are none.
std::optional<Counts> counts_of_means(
    const std::vector<const UpdateRecord*>& updates,
    const UpdateRecord& expected) {
  for (auto& counts : possible_counts(updates)) {
    double sum = 0;
    double total = 0;
    for (size_t rank = 0; rank < updates.size(); ++rank) {
      const auto count = static_cast<double>(counts.of_ranks[rank]);
      sum += updates[rank]->batches[0].loss * count;
      total += count;
    }
    const double loss = expected.batches[0].loss;
    const auto& first = counts.of_ranks[0];
    double mean = 0;
    for (const auto* update : updates) {
      mean += update->batches[0].loss / static_cast<double>(updates.size());
    }
    const bool are_equal = std::all_of(
        counts.of_ranks.begin(), counts.of_ranks.end(), [&](auto count) {
          return count == first;
        });
    // At the start of a training, all losses may be almost the same.
    const double rounding = 4 * kEpsilon32 * std::abs(loss);
    const double off = std::abs(sum / total - loss);
    if (!are_equal && total > 0 && std::abs(mean - loss) > rounding &&
        off <= std::max(rounding, 0.1 * std::abs(mean - loss))) {
      return std::move(counts);
    }
  }
  return std::nullopt;
}

/// The common module of all tensors whose gradients differ, if other modules
/// agree.
std::string single_module(
    const Tensors& gradients,
    const UpdateRecord& expected,
    double exact) {
  const Scale scale = scale_of(expected.gradients);
  std::set<std::string> odd;
  size_t num_equal = 0;
  for (const auto& tensor : gradients) {
    const auto* other = find(expected.gradients, tensor.name);
    const double size =
        std::max(std::sqrt(tensor.sketch.squares), scale.floor_of(tensor));
    if (other != nullptr &&
        distance(tensor.sketch, other->sketch) <= exact * size) {
      ++num_equal;
    } else {
      odd.insert(tensor.name.substr(0, tensor.name.rfind('.')));
    }
  }
  return odd.size() == 1 && num_equal > 0 ? *odd.begin() : std::string();
}

/// For a factor of one divided by the number of processes, which a mistake and
/// a correct program can both cause.
std::string explain_inverse(int num_merged) {
  return str_cat(
      "A single process trains on batches that are ",
      num_merged,
      " times as large. If the loss is a sum over the batch, use the mean, "
      "because otherwise the weights depend on the number of processes. If "
      "the loss is divided by the number of processes, remove this division: "
      "gradients are already averaged. If the loss is divided by a count over "
      "all processes, multiply it by the number of processes. If the loss is "
      "a sum divided by a constant, such as the batch size of one process, the "
      "program is correct. To compare it, divide by the size of the batch "
      "instead");
}

} // namespace

std::string short_number(double value) {
  std::ostringstream out;
  out << std::setprecision(2) << value;
  return out.str();
}

double mean_loss(const std::vector<const UpdateRecord*>& updates) {
  double sum = 0;
  double weights = 0;
  for (const auto* update : updates) {
    for (const auto& batch : update->batches) {
      sum += batch.loss * batch.weight;
      weights += batch.weight;
    }
  }
  return weights > 0 ? sum / weights : 0;
}

Verdict explain(const StepDifference& difference) {
  const size_t i = difference.step;
  const int num_merged = difference.num_merged;
  const auto& updates = difference.updates;
  const auto& expected = difference.expected;
  const auto& gradients = difference.gradients;
  const Worst& loss = difference.loss;
  const Worst& gradient = difference.gradient;
  const Worst& parameter = difference.parameter;
  const double inverse = 1.0 / num_merged;
  if (!gradient.is_too_large() && !parameter.is_too_large()) {
    const double ours = mean_loss(updates);
    const double theirs = mean_loss({&expected});
    if (std::abs(ours / theirs - inverse) > loss.tolerance) {
      return {};
    }
    return {
        .outcome = Outcome::kNotComparable,
        .lines = {
            str_cat(
                "Step ",
                i + 1,
                ": the loss is 1/",
                num_merged,
                " of that of a single process. The gradients agree, but "
                "clipping may hide the same factor there"),
            explain_inverse(num_merged)}};
  }
  const Worst& worst = gradient.is_too_large() ? gradient : parameter;
  std::vector<std::string> lines = {str_cat(
      "Step ",
      i + 1,
      ": ",
      gradient.is_too_large() ? "the gradient of" : "the update of",
      " '",
      worst.where,
      "' differs from that of one process. The relative difference is ",
      short_number(worst.difference),
      ", and the tolerance is ",
      short_number(worst.tolerance))};
  const auto add = [&](const std::string& mistake) {
    lines.push_back(str_cat("Likely mistake: ", mistake));
  };
  if (!gradient.is_too_large()) {
    add("the optimizer or the learning rate depends on the number of "
        "processes, or code changes the weights after the step");
    return {.outcome = Outcome::kDisagrees, .lines = lines};
  }
  const double factor = factor_between(gradients, expected.gradients);
  // Without the factor, much less of the difference must remain.
  const double remainder =
      std::min(4 * gradient.tolerance, std::abs(factor - 1) / 4);
  const bool is_multiple =
      are_multiples(gradients, expected.gradients, factor, remainder);
  if (is_multiple && std::abs(factor - inverse) <= gradient.tolerance) {
    lines.push_back(str_cat(
        "All gradients are 1/", num_merged, " of those of a single process"));
    lines.push_back(explain_inverse(num_merged));
    return {.outcome = Outcome::kNotComparable, .lines = lines};
  }
  const auto counts =
      is_multiple ? std::nullopt : counts_of_means(updates, expected);
  if (counts) {
    add(str_cat(
        "each rank averages its loss over its own count, but the counts "
        "differ (",
        counts->text(),
        "). Sum the losses and divide by the count over all ranks, or pass "
        "the count as the weight of backward()"));
  } else if (is_multiple) {
    add(str_cat(
        "all gradients are ",
        short_number(factor),
        " times those of one process. The loss is scaled by the number of "
        "processes, or micro-batches are not divided: use "
        "accelerator.backward(loss) and accelerator.accumulate(model)"));
  } else if (const auto only =
                 single_module(gradients, expected, difference.exact);
             !only.empty()) {
    add(str_cat(
        "only the gradients of '",
        only,
        "' differ. It computes with values that are not the same on all "
        "ranks (a generator or a constant that depends on the rank), or its "
        "gradients are not synchronised"));
  } else if (i == 0 && loss.is_too_large()) {
    add("the loss of a batch is not the mean of the losses of its samples "
        "(statistics of the batch, in-batch negatives, a mean over parts of "
        "different size), so its mean over ranks is a different value");
  } else if (updates[0]->batches.size() > 1) {
    add("code changes gradients before they are complete, such as clipping in "
        "every micro-batch, or gradients are not synchronised. Clip only if "
        "accelerator.sync_gradients is true");
  } else if (i > 0) {
    add(str_cat(
        i == 1 ? "step 1 agrees" : "earlier steps agree",
        ", so each process keeps values of its own between steps, such as a "
        "queue, a memory bank or statistics of its samples in an attribute. "
        "Gather the values of all processes, or register them as a buffer"));
  } else {
    add("gradients are not synchronised, or code changes them before the "
        "optimizer steps");
  }
  return {.outcome = Outcome::kDisagrees, .lines = lines};
}

} // namespace accelerate::verify
