// SPDX-License-Identifier: Apache-2.0
#include "core/verify/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/str.h"

namespace accelerate::verify {
namespace {

constexpr double kEpsilon32 = 0x1p-23;

using Tensors = std::vector<TensorRecord>;
/// A list of tensors in a record.
using List = Tensors UpdateRecord::*;

std::string short_number(double value) {
  std::ostringstream out;
  out << std::setprecision(2) << value;
  return out.str();
}

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

const TensorRecord* find(const Tensors& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return tensor.name == name;
      });
  return found == tensors.end() ? nullptr : &*found;
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
        odd.ranks.size() == 1 ? " differs" : " differ",
        " from rank 0's");
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
          " when the forward pass begins. Do not turn broadcast_buffers off, "
          "and reduce over all ranks what the buffer is computed from"));
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
          "on their own. Do both in the same way on all ranks"));
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
            " return different samples, although prepare() gives each rank its "
            "part of the same order. Pass a sampler that is not sharded and "
            "does not depend on the rank");
      }
    }
  }
  return std::nullopt;
}

/// Norms over all tensors, from which the scale of each tensor follows.
struct Scale {
  double squares = 0;
  std::int64_t num_elements = 0;

  /// A small part of the norm that a tensor would have if all elements were
  /// alike. Gradients that are zero in exact arithmetic, such as those of key
  /// biases in attention, stay below it.
  double floor_of(const TensorRecord& tensor) const {
    constexpr double kPart = 0.1;
    return num_elements == 0
               ? 0
               : kPart *
                     std::sqrt(
                         squares * static_cast<double>(tensor.num_elements) /
                         static_cast<double>(num_elements));
  }
};

Scale scale_of(const Tensors& tensors) {
  Scale scale;
  for (const auto& tensor : tensors) {
    scale.squares += tensor.sketch.squares;
    scale.num_elements += tensor.num_elements;
  }
  return scale;
}

/// Adds the tensors of a rank to those of the ranks before it, as one process
/// would have them. A rank may have no shard of a tensor.
void add_rank(const Tensors& tensors, Tensors& whole) {
  for (const auto& tensor : tensors) {
    const auto known =
        std::find_if(whole.begin(), whole.end(), [&](const auto& other) {
          return other.name == tensor.name;
        });
    if (known == whole.end()) {
      whole.push_back(tensor);
    } else if (tensor.is_divided) {
      known->sketch += tensor.sketch;
    }
  }
}

Tensors
joined(const std::vector<ProcessRecord>& run, size_t update, List list) {
  Tensors whole;
  for (const auto& process : run) {
    add_rank(process.updates[update].*list, whole);
  }
  return whole;
}

double factor_between(const Tensors& a, const Tensors& b) {
  double product = 0;
  double squares = 0;
  for (const auto& tensor : b) {
    if (const auto* other = find(a, tensor.name)) {
      for (size_t i = 0; i < Sketch::kNumSums; ++i) {
        product += other->sketch.sums[i] * tensor.sketch.sums[i];
        squares += tensor.sketch.sums[i] * tensor.sketch.sums[i];
      }
    }
  }
  return squares > 0 ? product / squares : 0;
}

/// Whether all tensors of `a` are those of `b` times the same factor.
bool are_multiples(
    const Tensors& a,
    const Tensors& b,
    double factor,
    double tolerance) {
  const Scale scale = scale_of(a);
  return std::all_of(a.begin(), a.end(), [&](const auto& tensor) {
    const auto* other = find(b, tensor.name);
    if (other == nullptr) {
      return false;
    }
    Sketch scaled = other->sketch;
    for (double& sum : scaled.sums) {
      sum *= factor;
    }
    const double size =
        std::max(std::sqrt(tensor.sketch.squares), scale.floor_of(tensor));
    return distance(tensor.sketch, scaled) <= tolerance * size;
  });
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

std::int64_t num_inputs(const UpdateRecord& update) {
  std::int64_t count = 0;
  for (const auto& batch : update.batches) {
    for (const auto& leaf : batch.leaves) {
      count += leaf.num_elements;
    }
  }
  return count;
}

/// The relative difference that uses the largest part of its tolerance.
struct Worst {
  double difference = 0;
  double tolerance = 1;
  bool is_set = false;
  /// The name of the tensor, if it is one of several.
  std::string where = {};

  /// NaN if the difference is NaN.
  double part() const { return difference / tolerance; }
  void add(const Worst& other) {
    const bool is_worse = std::isnan(other.part()) || other.part() > part();
    if (other.is_set && (!is_set || (is_worse && !std::isnan(part())))) {
      *this = other;
    }
  }
  bool is_too_large() const { return is_set && !(part() <= 1); }
};

class Comparison {
 public:
  Comparison(
      const std::vector<ProcessRecord>& run,
      const ProcessRecord& reference)
      : run_(run), reference_(reference) {
    for (const auto& process : run) {
      add_rank(process.initial, initial_);
    }
  }

  /// Compares update `i`. Returns what is wrong, and the likely mistake; empty
  /// if the update agrees.
  std::vector<std::string> compare_update(size_t i) {
    std::vector<const UpdateRecord*> updates;
    for (const auto& process : run_) {
      updates.push_back(&process.updates[i]);
    }
    const auto& expected = reference_.updates[i];
    const auto gradients = joined(run_, i, &UpdateRecord::gradients);
    const auto parameters = joined(run_, i, &UpdateRecord::parameters);
    // After the first update, weights differ by rounding, and optimizers like
    // Adam turn the sign of a tiny gradient into a full step.
    std::int64_t count = num_inputs(expected);
    const double exact =
        8 * kEpsilon32 *
        std::sqrt(static_cast<double>(std::max<std::int64_t>(count, 1024)));
    const double drift = i == 0 ? 0 : 2 * std::sqrt(exact);

    Worst loss;
    const double ours = mean_loss(updates);
    const double theirs = mean_loss({&expected});
    loss.add(
        {.difference =
             std::abs(ours - theirs) / std::max(std::abs(theirs), 1e-3),
         .tolerance = exact + drift,
         .is_set = true});
    Worst gradient;
    const Scale scale = scale_of(expected.gradients);
    for (const auto& tensor : gradients) {
      const auto* other = find(expected.gradients, tensor.name);
      const double size = std::max(
          {std::sqrt(tensor.sketch.squares),
           other == nullptr ? 0 : std::sqrt(other->sketch.squares),
           scale.floor_of(tensor)});
      const double difference =
          distance(tensor.sketch, other == nullptr ? Sketch() : other->sketch);
      // NaN is neither larger nor smaller than anything.
      if (!(size <= 0 && difference <= 0)) {
        gradient.add(
            {.difference = difference / size,
             .tolerance = exact + drift + 8 * reduced(tensor.epsilon),
             .is_set = true,
             .where = tensor.name});
        auto& amplified = amplified_[tensor.name];
        const double norm = std::sqrt(tensor.sketch.squares);
        amplified =
            std::max(amplified, norm > 0 ? scale.floor_of(tensor) / norm : 0.0);
      }
    }
    Worst parameter;
    for (const auto& tensor : parameters) {
      compare_parameter(tensor, expected, exact, i, parameter);
    }

    if (gradient.is_too_large() || parameter.is_too_large()) {
      return explain(
          i, updates, expected, gradients, loss, gradient, parameter, exact);
    }
    loss_.add(loss);
    gradient_.add(gradient);
    parameter_.add(parameter);
    return {};
  }

  std::vector<std::string> summary() const {
    std::vector<std::string> lines;
    const std::pair<const char*, const Worst&> kinds[] = {
        {"loss       ", loss_},
        {"gradients  ", gradient_},
        {"parameters ", parameter_}};
    for (const auto& [name, worst] : kinds) {
      if (worst.is_set) {
        lines.push_back(str_cat(
            "  ",
            name,
            worst.difference == 0
                ? std::string(" no difference beyond rounding")
                : str_cat(
                      " largest relative difference ",
                      short_number(worst.difference),
                      worst.where.empty() ? ""
                                          : str_cat(" in '", worst.where, "'"),
                      ", ",
                      short_number(worst.part()),
                      " of the tolerance")));
      }
    }
    return lines;
  }

 private:
  static double reduced(double epsilon) {
    return epsilon > kEpsilon32 ? epsilon : 0;
  }

  // Compares how far the parameter has moved since the first step.
  void compare_parameter(
      const TensorRecord& tensor,
      const UpdateRecord& expected,
      double exact,
      size_t i,
      Worst& worst) {
    const auto* other = find(expected.parameters, tensor.name);
    const auto* start = find(initial_, tensor.name);
    const auto* other_start = find(reference_.initial, tensor.name);
    if (other == nullptr || start == nullptr || other_start == nullptr) {
      return;
    }
    const Sketch moved = difference(tensor.sketch, start->sketch);
    const Sketch other_moved = difference(other->sketch, other_start->sketch);
    // Sums of fp32 values are exact to this part of the norm.
    const double rounding = 4 * std::max(tensor.epsilon, kEpsilon32) *
                            std::sqrt(tensor.sketch.squares) *
                            static_cast<double>(i + 1);
    const double size = std::max(norm_of(moved), norm_of(other_moved));
    const double off = distance(moved, other_moved);
    const auto amplified = amplified_.find(tensor.name);
    const double amplification =
        amplified == amplified_.end() ? 1 : std::max(1.0, amplified->second);
    const double tolerance =
        2 * std::sqrt(exact * amplification * static_cast<double>(i + 1)) +
        8 * reduced(tensor.epsilon);
    // The update of a tensor whose gradient is mostly rounding is arbitrary. So
    // is that of some elements of a bias, such as those for the keys in a bias
    // of queries, keys and values.
    constexpr double kArbitrary = 0.5;
    if (tolerance >= kArbitrary || size == 0 || tensor.num_dimensions < 2) {
      return;
    }
    worst.add(
        {.difference = std::max(0.0, off - rounding) / size,
         .tolerance = tolerance,
         .is_set = true,
         .where = tensor.name});
  }

  static Sketch difference(const Sketch& a, const Sketch& b) {
    Sketch result;
    for (size_t i = 0; i < Sketch::kNumSums; ++i) {
      result.sums[i] = a.sums[i] - b.sums[i];
    }
    return result;
  }
  static double norm_of(const Sketch& sketch) {
    return distance(sketch, Sketch());
  }
  std::vector<std::string> explain(
      size_t i,
      const std::vector<const UpdateRecord*>& updates,
      const UpdateRecord& expected,
      const Tensors& gradients,
      const Worst& loss,
      const Worst& gradient,
      const Worst& parameter,
      double exact) const {
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
        ", the tolerance ",
        short_number(worst.tolerance))};
    const auto add = [&](const std::string& mistake) {
      lines.push_back(str_cat("Likely mistake: ", mistake));
    };
    if (!gradient.is_too_large()) {
      add("the optimizer or the learning rate depends on the number of "
          "processes, or code changes the weights after the step");
      return lines;
    }
    const double factor = factor_between(gradients, expected.gradients);
    const bool is_multiple = are_multiples(
        gradients, expected.gradients, factor, 4 * gradient.tolerance);
    const auto counts = i == 0 && !is_multiple
                            ? counts_of_means(updates, expected)
                            : std::nullopt;
    if (counts) {
      add(str_cat(
          "each rank averages its loss over its own count, but the counts "
          "differ (",
          counts->text(),
          "). Sum the losses and divide by the count over all ranks, or pass "
          "the count as the weight of backward()"));
    } else if (is_multiple && std::abs(factor - 1) > 4 * exact) {
      add(str_cat(
          "all gradients are ",
          short_number(factor),
          " times those of one process. The loss is scaled by the number of "
          "processes, or micro-batches are not divided: use "
          "accelerator.backward(loss) and accelerator.accumulate(model)"));
    } else if (const auto only = single_module(gradients, expected, exact);
               !only.empty()) {
      add(str_cat(
          "only the gradients of '",
          only,
          "' differ. It computes with values that are not the same on all "
          "ranks (a generator or a constant that depends on the rank), or its "
          "gradients are not synchronised"));
    } else {
      add(i == 0 && loss.is_too_large()
              ? "the loss of a batch is not the mean of the losses of its "
                "samples (statistics of the batch, in-batch negatives, a mean "
                "over parts of different size), so its mean over ranks is "
                "another value"
              : "code changes gradients before they are complete, such as "
                "clipping in every micro-batch, or gradients are not "
                "synchronised. Clip only if accelerator.sync_gradients is "
                "true");
    }
    return lines;
  }

  /// The common module of all tensors whose gradients differ, if other modules
  /// agree.
  std::string single_module(
      const Tensors& gradients,
      const UpdateRecord& expected,
      double exact) const {
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

  const std::vector<ProcessRecord>& run_;
  const ProcessRecord& reference_;
  /// The parameters at the start.
  Tensors initial_;
  Worst loss_;
  Worst gradient_;
  Worst parameter_;
  /// How much smaller a gradient was than others of its size, at most. Rounding
  /// is that much larger in its update.
  std::map<std::string, double> amplified_;
};

std::string memory_line(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference) {
  const auto peak = [](const ProcessRecord& process) {
    std::int64_t most = 0;
    for (const auto& update : process.updates) {
      most = std::max(most, update.peak_memory);
    }
    return str_cat((most + 500'000) / 1'000'000, " MB");
  };
  std::string line = "  peak memory ";
  for (const auto& process : run) {
    line += str_cat(
        process.rank == 0 ? "" : ", ",
        peak(process),
        " on rank ",
        process.rank);
  }
  return line + str_cat("; ", peak(reference), " in one process");
}

std::vector<std::string> unique(
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

std::vector<std::string> obstacles(
    const std::vector<ProcessRecord>& processes,
    bool only_excuses) {
  return unique(processes, [&](const ProcessRecord& process) {
    std::vector<std::string> texts;
    for (const auto& obstacle : process.obstacles) {
      if (obstacle.only_excuses == only_excuses) {
        texts.push_back(obstacle.text);
      }
    }
    return texts;
  });
}

/// Why ranks may see other samples than one process in update `i`; empty if the
/// samples are the same.
std::string sample_difference(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference,
    size_t i) {
  const auto& expected = reference.updates[i].batches;
  for (size_t b = 0; b < expected.size(); ++b) {
    if (expected[b].leaves.empty()) {
      return "The samples of the step do not come from a prepared loader, so "
             "one process trains on others. Pass the loader to prepare()";
    }
    std::int64_t num_samples = 0;
    for (const auto& process : run) {
      num_samples += process.updates[i].batches[b].num_samples;
    }
    if (num_samples != expected[b].num_samples) {
      return str_cat(
          "The processes read ",
          num_samples,
          " samples in the step, but one process ",
          expected[b].num_samples,
          ". The batch size or the sampler depends on the number of processes");
    }
    for (size_t leaf = 0; leaf < expected[b].leaves.size(); ++leaf) {
      std::int64_t num_elements = 0;
      double sum = 0;
      for (const auto& process : run) {
        const auto& leaves = process.updates[i].batches[b].leaves;
        if (leaf < leaves.size()) {
          num_elements += leaves[leaf].num_elements;
          sum += leaves[leaf].sum;
        }
      }
      // Padding to another length changes the number of elements.
      const double other = expected[b].leaves[leaf].sum;
      if (num_elements == expected[b].leaves[leaf].num_elements &&
          std::abs(sum - other) >
              1e-5 * std::max({std::abs(sum), std::abs(other), 1.0})) {
        return "The loaders return other values in the second run. Either the "
               "data set differs between ranks (split without a seed, or "
               "already sharded), or reading a sample draws random numbers. "
               "Give all ranks the same data, and turn augmentation off or "
               "seed it with the index of the sample";
      }
    }
  }
  return {};
}

/// Whether BatchNorm has a buffer of this name.
bool is_of_batch_norm(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var") ||
         name.ends_with("num_batches_tracked");
}

Verdict not_comparable(std::vector<std::string> reasons) {
  return {.outcome = Outcome::kNotComparable, .lines = std::move(reasons)};
}

} // namespace

Verdict check_ranks(const std::vector<ProcessRecord>& run) {
  auto lines =
      unique(run, [](const auto& process) { return process.problems; });
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
        " computes something else from the same batch on rank ",
        rank,
        " than on rank 0. It uses values that depend on the rank, such as a "
        "generator seeded with the rank, or weights that are not synchronised");
  }
  return {};
}

Verdict compare(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference,
    int num_steps) {
  auto both = run;
  both.push_back(reference);
  if (auto reasons = obstacles(both, /*only_excuses=*/false);
      !reasons.empty()) {
    return not_comparable(std::move(reasons));
  }
  if (run[0].updates.empty() || reference.updates.empty()) {
    return not_comparable(
        {"The program made no step with a prepared optimizer. Pass the model, "
         "the optimizer and the loader to prepare()"});
  }
  for (const auto& process : run) {
    if (process.updates.size() != reference.updates.size()) {
      return not_comparable({str_cat(
          "Rank ",
          process.rank,
          " made ",
          process.updates.size(),
          process.updates.size() == 1 ? " step" : " steps",
          ", but one process ",
          reference.updates.size(),
          ". The length of the loop depends on time, or on the number of "
          "processes")});
    }
  }
  Comparison comparison(run, reference);
  const size_t num_updates = reference.updates.size();
  for (size_t i = 0; i < num_updates; ++i) {
    const auto& ours = run[0].updates[i];
    const auto& theirs = reference.updates[i];
    if (ours.optimizer != theirs.optimizer ||
        ours.batches.size() != theirs.batches.size()) {
      return not_comparable({str_cat(
          "Step ",
          i + 1,
          " has ",
          ours.batches.size(),
          " backward passes on ",
          run.size(),
          " processes, but ",
          theirs.batches.size(),
          " in one process. The loop depends on time, or on the number of "
          "processes")});
    }
    if (!std::isfinite(mean_loss({&theirs}))) {
      return not_comparable({str_cat(
          "The loss of step ",
          i + 1,
          " is NaN or infinite in one process, too. Fix the program on one "
          "process first")});
    }
    auto lines = comparison.compare_update(i);
    if (!lines.empty()) {
      auto excuses = obstacles(both, /*only_excuses=*/true);
      if (auto samples = sample_difference(run, reference, i);
          !samples.empty()) {
        excuses.push_back(std::move(samples));
      }
      const auto& changed = reference.updates[i].changed_buffers;
      const auto norm =
          std::find_if(changed.begin(), changed.end(), is_of_batch_norm);
      if (norm != changed.end()) {
        excuses.push_back(str_cat(
            "'",
            *norm,
            "' belongs to a BatchNorm that normalises over the batch of one "
            "rank, so ranks compute other values than one process. Convert it "
            "with SyncBatchNorm to compare"));
      } else if (!changed.empty() && excuses.empty()) {
        lines.push_back(str_cat(
            "Note: the forward pass changes the buffer '",
            changed[0],
            "'. If it depends on the batch, reduce it over all ranks"));
      }
      if (!excuses.empty()) {
        excuses.insert(excuses.begin(), lines[0]);
        return not_comparable(std::move(excuses));
      }
      return {.outcome = Outcome::kDisagrees, .lines = std::move(lines)};
    }
  }
  Verdict verdict;
  verdict.lines.push_back(str_cat(
      num_updates,
      num_updates == 1 ? " step" : " steps",
      " on ",
      run.size(),
      " processes agree with one process",
      num_updates < static_cast<size_t>(num_steps)
          ? str_cat(" (the program made no further steps)")
          : std::string()));
  for (auto& line : comparison.summary()) {
    verdict.lines.push_back(std::move(line));
  }
  for (size_t i = 0; i < num_updates; ++i) {
    if (run[0].updates[i].learning_rates !=
        reference.updates[i].learning_rates) {
      verdict.lines.push_back(
          "  The learning rates depend on the number of processes. Those of "
          "the processes were used in both runs");
      break;
    }
  }
  verdict.lines.push_back(memory_line(run, reference));
  return verdict;
}

} // namespace accelerate::verify
