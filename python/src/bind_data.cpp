// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "accelerate/data/samplers.h"
#include "python/src/binders.h"
#include "training/data/batch_dealer.h"
#include "training/data/dispatch_chain.h"
#include "training/data/even_split.h"
#include "training/verification/step_recorder.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;
using detail::DispatchedBatch;
using detail::DispatchReceiver;
using detail::DispatchSender;

/// Deletes objects whose destructor waits for other processes.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* object) const {
    const py::gil_scoped_release no_gil;
    delete object;
  }
};

/// The bytes of a batch (empty if it is not sent), the number of its samples,
/// and how many of them are real.
using BatchOfBytes = std::tuple<std::optional<py::bytes>, int64_t, int64_t>;

DispatchedBatch to_message(const BatchOfBytes& batch) {
  const auto& [bytes, num_samples, num_real] = batch;
  DispatchedBatch dispatched{
      .message = {},
      .facts = {.num_samples = num_samples, .num_real = num_real}};
  if (bytes) {
    const auto view = static_cast<std::string_view>(*bytes);
    dispatched.message =
        detail::make_message(static_cast<int64_t>(view.size()));
    std::copy(
        view.begin(),
        view.end(),
        detail::content_of(dispatched.message).begin());
  }
  return dispatched;
}

void bind_dispatch(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<DispatchSender, std::unique_ptr<DispatchSender, DeleteWithoutGil>>(
      module, "DispatchSender")
      .def(
          py::init<ProcessGroup, int64_t>(),
          py::arg("group"),
          py::arg("num_ahead"))
      .def_property_readonly("wants_turn", &DispatchSender::wants_turn)
      .def(
          "give",
          [](DispatchSender& sender, const std::vector<BatchOfBytes>& turn) {
            std::vector<DispatchedBatch> messages;
            for (const auto& batch : turn) {
              messages.push_back(to_message(batch));
            }
            const py::gil_scoped_release no_gil;
            sender.give(std::move(messages));
          },
          py::arg("turn"))
      .def("fail", &DispatchSender::fail, py::arg("message"), release)
      .def("end", &DispatchSender::end, release)
      .def("next", &DispatchSender::next, release);
  py::class_<
      DispatchReceiver,
      std::unique_ptr<DispatchReceiver, DeleteWithoutGil>>(
      module, "DispatchReceiver")
      .def(
          py::init<ProcessGroup, int64_t>(),
          py::arg("group"),
          py::arg("num_ahead"))
      .def(
          "next",
          [](DispatchReceiver& receiver)
              -> std::optional<std::pair<py::bytes, BatchFacts>> {
            std::optional<DispatchedBatch> batch;
            {
              const py::gil_scoped_release no_gil;
              batch = receiver.next();
            }
            if (!batch) {
              return std::nullopt;
            }
            const auto content = detail::content_of(batch->message);
            return std::pair(
                py::bytes(content.data(), content.size()), batch->facts);
          });
}

void bind_dealer(py::module_& module) {
  py::class_<BatchDealer::Slice>(module, "DealtSlice")
      .def_readonly("first", &BatchDealer::Slice::first)
      .def_readonly("num_samples", &BatchDealer::Slice::num_samples)
      .def_readonly("num_real", &BatchDealer::Slice::num_real);
  py::class_<BatchDealer::Turn>(module, "DealtTurn")
      .def_readonly("num_samples", &BatchDealer::Turn::num_samples)
      .def_readonly("repeated", &BatchDealer::Turn::repeated)
      .def_readonly("slices", &BatchDealer::Turn::slices)
      .def_readonly("is_even", &BatchDealer::Turn::is_even)
      .def_readonly("is_kept", &BatchDealer::Turn::is_kept);
  py::class_<BatchDealer>(module, "BatchDealer")
      .def(
          py::init<bool, bool, int>(),
          py::arg("split_batches"),
          py::arg("drop_last"),
          py::arg("world_size"))
      .def_property_readonly("batches_per_turn", &BatchDealer::batches_per_turn)
      .def("num_turns", &BatchDealer::num_turns, py::arg("num_batches"))
      .def("deal", &BatchDealer::deal, py::arg("sizes"));
}

/// The shard of one rank. In the reference run of `accelerate verify`, it
/// contains the shards of all ranks.
class ShardOfRanks {
 public:
  ShardOfRanks(const BatchOptions& options, ShardOptions shard) {
    const auto* recorder = StepRecorder::get();
    const bool is_merged = recorder != nullptr && recorder->is_reference() &&
                           shard.world_size == recorder->num_merged_ranks();
    const int first = is_merged ? 0 : shard.rank;
    const int last = is_merged ? shard.world_size - 1 : shard.rank;
    for (int rank = first; rank <= last; ++rank) {
      shards_.emplace_back(options, ShardOptions{rank, shard.world_size});
    }
  }

  int64_t round_size() const { return shards_[0].round_size(); }
  bool is_mine(int64_t position) const {
    return std::any_of(shards_.begin(), shards_.end(), [&](const auto& shard) {
      return shard.is_mine(position);
    });
  }
  bool is_repeated(int64_t position) const {
    return shards_[0].is_repeated(position);
  }
  /// The positions, and how many of them are real.
  std::pair<std::vector<int64_t>, int64_t> last_batch(
      int64_t num_elements) const {
    std::pair<std::vector<int64_t>, int64_t> all = {};
    for (const auto& shard : shards_) {
      const auto batch = shard.last_batch(num_elements);
      all.first.insert(
          all.first.end(), batch.indices.begin(), batch.indices.end());
      all.second += batch.num_real;
    }
    return all;
  }
  int64_t size(int64_t num_elements) const {
    return shards_[0].size(num_elements);
  }

 private:
  std::vector<IterableShard> shards_;
};

} // namespace

void bind_data(py::module_& module) {
  py::class_<ShardOfRanks>(module, "IterableShard")
      .def(
          py::init([](int64_t batch_size,
                      bool drop_last,
                      bool even_batches,
                      bool split_batches,
                      int rank,
                      int world_size) {
            return ShardOfRanks(
                {batch_size, drop_last, even_batches, split_batches},
                {rank, world_size});
          }),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("even_batches"),
          py::arg("split_batches"),
          py::arg("rank"),
          py::arg("world_size"))
      .def_property_readonly("round_size", &ShardOfRanks::round_size)
      .def("is_mine", &ShardOfRanks::is_mine, py::arg("position"))
      .def("is_repeated", &ShardOfRanks::is_repeated, py::arg("position"))
      .def("last_batch", &ShardOfRanks::last_batch, py::arg("num_elements"))
      .def("size", &ShardOfRanks::size, py::arg("num_elements"));
  module.def(
      "even_split",
      [](int64_t size, int rank, int world_size, bool apply_padding) {
        return even_split(size, {rank, world_size}, apply_padding);
      },
      py::arg("size"),
      py::arg("rank"),
      py::arg("world_size"),
      py::arg("apply_padding"));
  module.def(
      "random_order",
      [](int64_t size, uint64_t seed, int64_t epoch) {
        return RandomSampler(size).order(seed, epoch);
      },
      py::arg("size"),
      py::arg("seed"),
      py::arg("epoch"));
  bind_dealer(module);
  bind_dispatch(module);
}

} // namespace accelerate::python
