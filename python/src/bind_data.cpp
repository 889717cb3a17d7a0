// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "accelerate/data/samplers.h"
#include "python/src/binders.h"
#include "training/data/batch_dealer.h"
#include "training/data/dispatch_chain.h"
#include "training/data/even_split.h"

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

/// A batch's bytes (none if it is not sent), its samples, and how many of them
/// are real.
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

} // namespace

void bind_data(py::module_& module) {
  py::class_<IterableShard>(module, "IterableShard")
      .def(
          py::init([](int64_t batch_size,
                      bool drop_last,
                      bool even_batches,
                      bool split_batches,
                      int rank,
                      int world_size) {
            return IterableShard(
                {batch_size, drop_last, even_batches, split_batches},
                {rank, world_size});
          }),
          py::arg("batch_size"),
          py::arg("drop_last"),
          py::arg("even_batches"),
          py::arg("split_batches"),
          py::arg("rank"),
          py::arg("world_size"))
      .def_property_readonly("round_size", &IterableShard::round_size)
      .def("is_mine", &IterableShard::is_mine, py::arg("position"))
      .def("is_repeated", &IterableShard::is_repeated, py::arg("position"))
      .def(
          "last_batch",
          [](const IterableShard& shard, int64_t num_elements) {
            auto batch = shard.last_batch(num_elements);
            return std::make_pair(std::move(batch.indices), batch.num_real);
          },
          py::arg("num_elements"))
      .def("size", &IterableShard::size, py::arg("num_elements"));
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
